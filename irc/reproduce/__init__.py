"""Making a failure small enough to read, and telling others of it without telling what is private.

``smallest`` is the search; ``programs`` and ``onnx_models`` are what it takes away of a program in
text form and of an ONNX file. ``onnx_failure`` says how an ONNX file fails, in a process of its
own, since that may end it. ``small`` is what ``irc reduce`` prints. ``anonymous`` takes names out
of a program for the archive of ``irc bug-report``, which ``bug`` writes. What a crash leaves is
written by :mod:`irc.pipeline.reproducer`.
"""
