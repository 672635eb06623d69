#!/bin/sh
# Installing a package starts nothing here: the roles do.
exit 101
