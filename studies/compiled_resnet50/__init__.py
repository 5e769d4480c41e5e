"""Does `autoplan estimate --evidence compiled` give the same bytes for ResNet-50 as calling the compiler by hand?"""
