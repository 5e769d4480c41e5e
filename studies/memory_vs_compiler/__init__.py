"""How far is the analytic memory estimate from what XLA itself says, on chips that are here and chips that are not?"""
