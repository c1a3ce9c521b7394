#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_tables.h: the ranges of letters, numbers and white space that the regular
expressions of byte-pair tokenizers ask for (\\p{L}, \\p{N}, \\s). Hugging Face tokenizers 0.23 uses
Unicode 16, so the tables are made with the package unicodedata2 16.0.0 where Python's own is older.

Usage: tools/unicode_classes.py > src/tokenizer/unicode_tables.h
"""
from unicode_tables import header, range_table

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

# White_Space of PropList.txt; str.isspace() would add the separators U+001C to U+001F.
SPACES = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
          0x202F, 0x205F, 0x3000]


def category(first):
    return [p for p in range(0x110000) if unicodedata.category(chr(p))[0] == first]


print(header("Unicode %s: which code points are letters, numbers and white space." % unicodedata.unidata_version,
             "unicode_classes.py", "WEFTI_TOKENIZER_UNICODE_TABLES_H", '#include "tokenizer/unicode.h"\n',
             "\n".join([range_table("letters", category("L")), range_table("numbers", category("N")),
                        range_table("spaces", SPACES)])))
