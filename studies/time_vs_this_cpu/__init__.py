"""How near are predicted times to measured ones on the processor that this runs on, before and after three trials?"""
