"""The solver: variables with choices, costs of choices and of pairs, and memory over time; it knows no meshes and no programs"""
