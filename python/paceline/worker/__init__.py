"""The worker process: dials the daemon, loads a model, executes plans. It decides no shape.

`__main__` is the command line, `connection` the two streams, `session` the life of one worker, `runner` a step,
`checks` the last look at the tensors before a launch. User-facing flags belong to the daemon.
"""
