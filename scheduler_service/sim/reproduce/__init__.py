"""The two documents, reproduced: one experiment a figure, table or claim.

`sweeps` says what is run, `published` what the documents state, `checks` compares, `article`
covers the fairness article in its own sequential model, `surrogate_curve` the analytical figure.
"""
