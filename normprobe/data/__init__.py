"""Data sets to samples: each sample is one question with its image.

``data_set``    ``open_data``: a data set by name or path, and ``DataSet``, which is iterated
``sample``      one question with its images, and regions of them
``question``    one question before its row is read, and ``Recipe``: how rows become questions
``rows``        rows with their places, what cells may hold, and whether a bad one ends the run
``formats``     TSV, JSON, parquet, text files, saved folders and the hub to rows
``images``      encoded bytes to an RGB picture, or a refusal

Each of these has the recipes of some forms:

``benchmarks``  every benchmark that ``--data`` can name, one entry each
``published``   their tables and official JSON files
``referring``   words and the boxes of what they mean: RefCOCO as JSON
``local``       files of one's own, and what a file or folder holds
"""
