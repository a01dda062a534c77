"""Model families: what a checkpoint's `config.json` says, and the network that it describes.

`config` and `registry` import no torch, so that a folder can be judged before anything heavy is loaded; each family's
file is imported only when one of its models is built.
"""
