"""Is a training that runs out of memory rescued, by the least change that runs, in few trials?"""
