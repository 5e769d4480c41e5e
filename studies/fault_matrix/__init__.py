"""Does every fault end in a plan or in one clear message, with nothing lost and no process left?"""
