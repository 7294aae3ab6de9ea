"""The phenomenon on a small model: narrow SFT, rows that drift, words that are lost, what restores them.

A straight road to read in this order: `texts` (text from packages), `model` (the decoder), `train`
(pretraining and SFT), `experiment` (the variants, judged by the project's own functions).
"""
