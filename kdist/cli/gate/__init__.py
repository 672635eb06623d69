"""`kdist gate`: what may go down now, what a roll has to do, and the lock that it holds."""
