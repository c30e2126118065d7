"""`make wheels`: the packages of a release, for other machines than this one."""
