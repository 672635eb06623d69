"""The real world behind small interfaces, and a simulated twin of each.

Clock, files, tasks: what reads the time, touches a disk or waits is here and is passed to everyone
else, so that a test can stop the clock or pull the plug. So is chance, as a `random.Random`.
"""
