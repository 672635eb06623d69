"""The real world behind small interfaces, and a simulated twin of each.

Clock, files, tasks: only code here reads the time, touches a disk or waits. It is passed in to all
other packages, so that a test can stop the clock or cut the power. Randomness is passed in too, as
a `random.Random`.
"""
