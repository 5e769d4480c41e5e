"""How accurate are estimated times on a local CPU, before and after three trials?"""
