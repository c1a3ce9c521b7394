/* Files of formats that a reader cannot take, told by their name or their first bytes. See
 * data/jsonl.h and data/array.h. */
#include "data/jsonl.h"

#include <string.h>
#include <strings.h>

#include "base/reader.h"
#include "data/array.h"

/* Advice, by kind. */
static const char as_lines[] = "write each text as one line {\"text\": \"...\"} of a .jsonl file",
                  unpacked[] = "unpack it first",
                  converted[] = "convert it to plain text or to lines {\"text\": \"...\"}",
                  arrays[] = "set data.format to tokens or npy if it holds tokens",
                  images[] = "weft reads images as arrays: put all of them into one npy or IDX "
                             "file, and their labels into another one",
                  sounds[] = "write what was said as text";

typedef struct structure {
    const char *name, *advice;
    const char *endings; /* each between spaces */
    const char *magic;   /* first bytes; NULL: none */
    int magic_bytes;
} structure;

static const structure structures[] = {
    {"a JSON document",
     "if each line is an object, set data.format: jsonl; else write each text as "
     "one line {\"text\": \"...\"}",
     " json ", NULL, 0},
    {"a table", as_lines, " csv tsv xls xlsx ods ", NULL, 0},
    {"a Parquet file", as_lines, " parquet ", "PAR1", 4},
    {"an Arrow file", as_lines, " arrow feather ipc ", "ARROW1", 6},
    {"an Avro file", as_lines, " avro ", "Obj\001", 4},
    {"an ORC file", as_lines, " orc ", NULL, 0},
    {"a data base", as_lines, " db sqlite sqlite3 mdb ", "SQLite format 3", 15},
    {"an XML document", converted, " xml ", "<?xml", 5},
    {"a PDF document", converted, " pdf ", "%PDF-", 5},
    {"a word processor's document", converted, " doc docx odt rtf epub ", "{\\rtf", 5},
    {"a gzip file", unpacked, " gz tgz ", "\x1f\x8b", 2},
    {"a zip archive", unpacked, " zip ", "PK\003\004", 4},
    {"a Zstandard file", unpacked, " zst zstd ", "\x28\xb5\x2f\xfd", 4},
    {"an xz file", unpacked, " xz ",
     "\xfd"
     "7zXZ",
     5},
    {"a bzip2 file", unpacked, " bz2 ", NULL, 0},
    {"a tar archive", unpacked, " tar ", NULL, 0},
    {"a 7z archive", unpacked, " 7z ", "7z\xbc\xaf", 4},
    {"a NumPy file", arrays, " npy npz ", "\x93NUMPY", 6},
    {"a token shard", arrays, "", "\x88\xd8\x34\x01\x01\0\0\0", 8},
    {"a token shard", arrays, "", "\xa1\xd9\x34\x01\x07\0\0\0", 8},
    {"a PNG image", images, " png ", "\x89PNG", 4},
    {"a JPEG image", images, " jpg jpeg ", "\xff\xd8\xff", 3},
    {"a GIF image", images, " gif ", "GIF89a", 6},
    {"a TIFF image", images, " tif tiff ", "II*\0", 4},
    {"an image", images, " bmp webp heic ppm ", NULL, 0},
    {"a recording", sounds, " wav mp3 flac ogg m4a ", "fLaC", 4},
    {"a video", sounds, " mp4 mkv avi mov ", "\x1a\x45\xdf\xa3", 4},
    {"a program", converted, " exe so dll ", "\x7f\x45LF", 4},
    {"an HDF5 file", converted, " h5 hdf5 ", "\x89HDF", 4},
    {"a file of weights", converted, " safetensors pt pth pkl ckpt onnx gguf ", NULL, 0},
};

/* The ending of a path's last name, or "". */
static const char *ending_of(const char *path) {
    const char *name = strrchr(path, '/'), *dot;
    name = name ? name + 1 : path;
    dot = strrchr(name, '.');
    return dot && dot != name ? dot + 1 : "";
}

bool wefti_jsonl_named(const char *path) {
    const char *ending = ending_of(path);
    return !strcasecmp(ending, "jsonl") || !strcasecmp(ending, "ndjson");
}

static bool in_list(const char *list, const char *ending) {
    size_t length = strlen(ending);
    for (const char *at = list; length && *at; at++)
        if (*at == ' ' && !strncasecmp(at + 1, ending, length) && at[1 + length] == ' ')
            return true;
    return false;
}

static bool begins_as(const structure *s, const unsigned char *first, int64_t bytes) {
    return s->magic && s->magic_bytes <= bytes && !memcmp(first, s->magic, (size_t)s->magic_bytes);
}

weft_status wefti_text_check(const char *path) {
    enum { COUNT = sizeof structures / sizeof *structures };
    unsigned char first[16] = {0};
    wefti_reader *reader;
    WEFT_TRY(wefti_reader_open(path, &reader));
    int64_t bytes = wefti_reader_bytes(reader);
    if (bytes > (int64_t)sizeof first) bytes = sizeof first;
    weft_status status = wefti_reader_at(reader, 0, bytes, first);
    wefti_reader_close(reader);
    WEFT_TRY(status);
    for (int i = 0; i < COUNT; i++) {
        const structure *s = &structures[i];
        WEFT_REQUIRE(!begins_as(s, first, bytes) && !in_list(s->endings, ending_of(path)),
                     WEFT_E_NO_IMPL,
                     "%s is %s, not text: %s; data.format: raw takes any file as it is", path,
                     s->name, s->advice);
    }
    return WEFT_OK;
}

/* The format of arrays that reads the structure; -1: none. */
static int read_by(const structure *s) {
    if (s->advice != arrays) return -1;
    return s->magic[0] == '\x93' ? (int)WEFTI_ARRAY_NPY : (int)WEFTI_ARRAY_SHARD;
}

static const char *advice_for_arrays(const structure *s) {
    if (read_by(s) == (int)WEFTI_ARRAY_NPY) return "set data.format: npy";
    if (read_by(s) == (int)WEFTI_ARRAY_SHARD) return "set data.format: tokens";
    if (s->advice == unpacked || s->advice == images) return s->advice;
    return "write its numbers as one npy or IDX file";
}

weft_status wefti_array_refuse(const char *path, wefti_array_format format,
                               const unsigned char *first, int64_t bytes) {
    static const char *const names[] = {[WEFTI_ARRAY_IDX] = "an IDX file",
                                        [WEFTI_ARRAY_NPY] = "an npy file",
                                        [WEFTI_ARRAY_SHARD] = "a token shard"};
    enum { COUNT = sizeof structures / sizeof *structures };
    for (int i = 0; i < COUNT; i++) {
        const structure *s = &structures[i];
        WEFT_REQUIRE(read_by(s) == (int)format || !begins_as(s, first, bytes), WEFT_E_CORRUPT,
                     "%s is %s, not %s: %s", path, s->name, names[format], advice_for_arrays(s));
    }
    return WEFT_OK;
}
