/* Reads encrypted files as if they were plain: see seal.h. Any region can be read. Whole frames are
 * decrypted into the caller's memory. The frame at an end of a region is kept, as the next region
 * often begins there. */
#include <pthread.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "checkpoint/seal/derive.h"

typedef struct sealed_file {
    wefti_reader *raw;
    wefti_seal seal;
    char *path;
    pthread_mutex_t mutex; /* of the kept frame */
    int64_t kept;          /* its number; -1: none */
    unsigned char *frame;
} sealed_file;

/* What one thread needs to decrypt frames, made when it is first needed. */
typedef struct opening {
    const sealed_file *file;
    wefti_seal_cipher *cipher;
    unsigned char *sealed; /* a frame with its tag */
} opening;

static void end_opening(opening *w) {
    wefti_seal_cipher_close(w->cipher);
    wefti_free(w->sealed);
}

static weft_status need_opening(opening *w) {
    const size_t bytes = (size_t)w->file->seal.frame_bytes + WEFTI_SEAL_TAG_BYTES;
    if (!w->sealed) w->sealed = wefti_alloc(bytes);
    WEFT_REQUIRE(w->sealed, WEFT_E_NOMEM, "no memory to decrypt %s", w->file->path);
    return w->cipher ? WEFT_OK : wefti_seal_cipher_open(&w->file->seal, &w->cipher);
}

static weft_status open_frame(opening *w, int64_t frame, unsigned char *to) {
    const sealed_file *f = w->file;
    const int64_t bytes = wefti_seal_frame_bytes(&f->seal, frame);
    WEFT_TRY(need_opening(w));
    WEFT_TRY(wefti_reader_at(f->raw, wefti_seal_frame_at(&f->seal, frame),
                             bytes + WEFTI_SEAL_TAG_BYTES, w->sealed));
    WEFT_REQUIRE(wefti_seal_open_frame(w->cipher, frame, w->sealed, to), WEFT_E_CORRUPT,
                 "%s is damaged, or was moved from another place: bytes %lld to %lld do not have "
                 "the tag that was written",
                 f->path, (long long)(frame * f->seal.frame_bytes),
                 (long long)(frame * f->seal.frame_bytes + bytes));
    return WEFT_OK;
}

/* Bytes [begin, end) of a frame, by way of the kept frame. */
static weft_status read_part(sealed_file *f, opening *w, int64_t frame, int64_t begin, int64_t end,
                             unsigned char *to) {
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&f->mutex);
    if (f->kept != frame) {
        f->kept = -1;
        status = open_frame(w, frame, f->frame);
        if (status >= 0) f->kept = frame;
    }
    if (status >= 0 && end > begin) memcpy(to, f->frame + begin, (size_t)(end - begin));
    pthread_mutex_unlock(&f->mutex);
    return status;
}

static weft_status read_region(void *context, int64_t at, int64_t bytes, void *to) {
    sealed_file *f = context;
    opening w = {.file = f};
    unsigned char *next = to;
    weft_status status = WEFT_OK;
    for (int64_t n; bytes > 0 && status >= 0; at += n, bytes -= n, next += n) {
        const int64_t frame = at / f->seal.frame_bytes, begin = at % f->seal.frame_bytes,
                      whole = wefti_seal_frame_bytes(&f->seal, frame);
        n = whole - begin < bytes ? whole - begin : bytes;
        status = n == whole ? open_frame(&w, frame, next)
                            : read_part(f, &w, frame, begin, begin + n, next);
    }
    end_opening(&w);
    return status;
}

static void close_sealed(void *context) {
    sealed_file *f = context;
    pthread_mutex_destroy(&f->mutex);
    wefti_reader_close(f->raw);
    wefti_seal_wipe(&f->seal);
    wefti_free(f->frame);
    wefti_free(f->path);
    wefti_free(f);
}

/* The first frame authenticates the header. */
static weft_status check_first(sealed_file *f) {
    opening w = {.file = f};
    weft_status status = read_part(f, &w, 0, 0, 0, NULL);
    end_opening(&w);
    return status;
}

static weft_status make(wefti_reader *raw, const char *path, const wefti_seal *seal,
                        wefti_reader **out) {
    static const wefti_reader_table table = {.read = read_region, .close = close_sealed};
    sealed_file *f;
    WEFT_NEW(f, sealed_file);
    f->raw = raw;
    f->seal = *seal;
    f->kept = -1;
    pthread_mutex_init(&f->mutex, NULL);
    f->path = wefti_strdup(path);
    f->frame = wefti_alloc((size_t)seal->frame_bytes);
    weft_status status =
        f->path && f->frame ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory to read %s", path);
    if (status >= 0) status = check_first(f);
    if (status >= 0) status = wefti_reader_made(&table, f, path, seal->bytes, out);
    if (status < 0) {
        f->raw = NULL; /* the caller's */
        close_sealed(f);
    }
    return status;
}

static weft_status check_folder(const wefti_seal_mark *folder, bool sealed, const wefti_seal *seal,
                                const char *path) {
    wefti_seal_mark own = {0};
    if (!folder) return WEFT_OK;
    WEFT_REQUIRE(folder->sealed == sealed, WEFT_E_CORRUPT,
                 "%s is%s encrypted, but the manifest beside it is%s", path, sealed ? "" : " not",
                 sealed ? " not" : "");
    if (!sealed) return WEFT_OK;
    wefti_seal_mark_of(seal, &own);
    WEFT_REQUIRE(!memcmp(own.salt, folder->salt, sizeof own.salt), WEFT_E_CORRUPT,
                 "%s was encrypted for another checkpoint than the manifest beside it", path);
    return WEFT_OK;
}

weft_status wefti_sealed_of(wefti_reader *raw, const char *path, const wefti_seal_mark *folder,
                            wefti_reader **out) {
    unsigned char header[WEFTI_SEAL_HEADER_BYTES] = {0};
    const int64_t all = wefti_reader_bytes(raw);
    const int64_t first = all < WEFTI_SEAL_HEADER_BYTES ? all : WEFTI_SEAL_HEADER_BYTES;
    wefti_seal seal = {{0}, {0}, 0, 0, 0};
    WEFT_TRY(wefti_reader_at(raw, 0, first, header));
    const bool sealed = wefti_seal_is(header, first);
    WEFT_REQUIRE(!sealed || first == WEFTI_SEAL_HEADER_BYTES, WEFT_E_CORRUPT,
                 "%s was cut at %lld bytes, within the header of an encrypted file", path,
                 (long long)all);
    weft_status status = sealed ? wefti_seal_parse(header, all, path, &seal) : WEFT_OK;
    if (status >= 0) status = check_folder(folder, sealed, &seal, path);
    if (status >= 0 && sealed) status = make(raw, path, &seal, out);
    if (status >= 0 && !sealed) *out = raw;
    wefti_seal_wipe(&seal);
    return status;
}

weft_status wefti_sealed_open(const char *path, const wefti_seal_mark *folder, wefti_reader **out) {
    wefti_reader *raw = NULL;
    WEFT_TRY(wefti_reader_open(path, &raw));
    weft_status status = wefti_sealed_of(raw, path, folder, out);
    if (status < 0) wefti_reader_close(raw);
    return status;
}

/* ---- texts ---- */

/* *text: the encrypted bytes; becomes the plain ones. */
static weft_status unseal(const char *path, wefti_seal_mark *mark, char **text, int64_t *bytes) {
    wefti_reader *raw = NULL, *plain = NULL;
    wefti_seal seal = {{0}, {0}, 0, 0, 0};
    weft_status status = wefti_reader_of(*text, *bytes, &raw);
    if (status >= 0) status = wefti_sealed_of(raw, path, NULL, &plain);
    if (status < 0) {
        wefti_reader_close(raw);
        return status;
    }
    memcpy(seal.header, *text, sizeof seal.header); /* wefti_sealed_of has found it in order */
    wefti_seal_mark_of(&seal, mark);
    const int64_t count = wefti_reader_bytes(plain);
    char *out = wefti_alloc((size_t)count + 1);
    status = out ? wefti_reader_at(plain, 0, count, out)
                 : WEFT_RAISE(WEFT_E_NOMEM, "no memory for the %lld bytes of %s", (long long)count,
                              path);
    wefti_reader_close(plain);
    if (status < 0) {
        wefti_free(out);
        return status;
    }
    out[count] = '\0';
    wefti_free(*text);
    *text = out;
    *bytes = count;
    return WEFT_OK;
}

weft_status wefti_sealed_read(const char *path, int64_t limit, wefti_seal_mark *out_mark,
                              char **out, int64_t *out_bytes) {
    wefti_seal_mark mark = {0};
    char *text = NULL;
    int64_t bytes = 0;
    WEFT_TRY(
        wefti_file_read(path, wefti_seal_file_bytes(limit, WEFTI_SEAL_FRAME_BYTES), &text, &bytes));
    weft_status status = wefti_seal_is(text, bytes) ? unseal(path, &mark, &text, &bytes) : WEFT_OK;
    if (status >= 0 && bytes > limit)
        status = WEFT_RAISE(WEFT_E_IO, "%s has %lld bytes; such a file may have at most %lld", path,
                            (long long)bytes, (long long)limit);
    if (status < 0) {
        wefti_free(text);
        return status;
    }
    if (out_mark) *out_mark = mark;
    *out = text;
    *out_bytes = bytes;
    return WEFT_OK;
}
