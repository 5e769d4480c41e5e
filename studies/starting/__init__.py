"""Does a forked trial behave like one that is started in a new process?"""
