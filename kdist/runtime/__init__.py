"""The real world behind small interfaces, and a simulated twin of each.

Clock, files, tasks: only code here reads the time, touches a disk or waits, and it is passed to all
other rooms, so that a test can stop the clock or cut the power. So is chance, a `random.Random`.
"""
