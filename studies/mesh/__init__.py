"""Is a mesh of 8 simulated devices really used, and does it train what one device trains?"""
