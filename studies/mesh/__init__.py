"""Does a mesh of 8 simulated devices train the same as one device, and how efficient is it?"""
