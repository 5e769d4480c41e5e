"""How accurate is the analytic memory estimate, compared with XLA's own figures for present and absent chips?"""
