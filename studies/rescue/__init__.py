"""Does tuning find the smallest change with which a training fits into memory, in few trials?"""
