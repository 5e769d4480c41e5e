"""Is what `autoplan estimate --evidence compiled` says of ResNet-50 what the compiler says when it is asked by hand?"""
