/* The files of one folder of a step. See run.h. */
#include "base/digest/digest.h"
#include "base/io.h"
#include "base/memory.h"
#include "checkpoint/run/run.h"

/* A larger manifest would describe more than the million tensors that a file may have. */
#define MANIFEST_LIMIT ((int64_t)512 << 20)

void wefti_step_files_forget(wefti_step_files *f) {
    wefti_manifest_destroy(f->manifest);
    f->manifest = NULL;
}

void wefti_step_files_close(wefti_step_files *f) {
    for (int64_t i = 0; i < f->file_count; i++) {
        if (f->files) wefti_safetensors_close(f->files[i]);
        if (f->readers) wefti_reader_close(f->readers[i]);
    }
    wefti_free(f->files);
    wefti_free(f->readers);
    wefti_manifest_destroy(f->manifest);
    wefti_free(f->path);
    *f = (wefti_step_files){0};
}

weft_status wefti_step_files_manifest(wefti_step_files *f, const char *folder) {
    f->path = wefti_strdup(folder);
    char *path = wefti_format("%s/manifest.json", folder), *text = NULL;
    int64_t bytes = 0;
    weft_status status = path && f->path
                             ? wefti_sealed_read(path, MANIFEST_LIMIT, &f->mark, &text, &bytes)
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for the name of a file");
    if (status >= 0) {
        status = wefti_manifest_parse(text, bytes, &f->manifest);
        f->identity = wefti_crc32c(0, text, (size_t)bytes);
        wefti_free(text);
        if (status < 0) (void)wefti_prefix(status, "%s", path);
    } else if (status == WEFT_E_NOT_FOUND) {
        status =
            WEFT_RAISE(WEFT_E_CORRUPT, "%s has no manifest.json: it was never completed", folder);
    }
    wefti_free(path);
    return status;
}

/* A file with tensors is checked up to the end of its header here, and its tensors one by one
 * later. Any other file is checked as a whole. */
static weft_status open_file(wefti_step_files *f, int64_t i, bool holds_tensors, const char *path,
                             bool unread) {
    const wefti_manifest_file *file = &f->manifest->files[i];
    weft_status status = wefti_sealed_open(path, &f->mark, &f->readers[i]);
    if (status == WEFT_E_NOT_FOUND) WEFT_FAIL(WEFT_E_CORRUPT, "%s is missing", path);
    WEFT_TRY(status);
    const wefti_reader *reader = f->readers[i];
    int64_t bytes = wefti_reader_bytes(reader);
    uint32_t crc = 0;
    WEFT_REQUIRE(bytes == file->bytes, WEFT_E_CORRUPT, "%s has %lld bytes; %lld were written", path,
                 (long long)bytes, (long long)file->bytes);
    WEFT_TRY(wefti_reader_crc32c(reader, 0, file->checked_bytes, &crc));
    WEFT_REQUIRE(crc == file->crc32c, WEFT_E_CORRUPT,
                 "the first %lld bytes of %s do not have the checksum %08x",
                 (long long)file->checked_bytes, path, file->crc32c);
    WEFT_REQUIRE(holds_tensors || file->checked_bytes == file->bytes, WEFT_E_CORRUPT,
                 "%s holds bytes that no checksum covers", path);
    if (!holds_tensors) return WEFT_OK;
    /* all tensors will be read in file order: ask the kernel to read ahead */
    if (!unread) wefti_reader_ahead(reader);
    status = wefti_safetensors_read(reader, &f->files[i]);
    if (status < 0) return wefti_prefix(status, "%s", path);
    WEFT_REQUIRE(wefti_safetensors_header_bytes(f->files[i]) == file->checked_bytes, WEFT_E_CORRUPT,
                 "%s: the manifest and the file disagree about the length of its header", path);
    return WEFT_OK;
}

weft_status wefti_step_files_open(wefti_step_files *f, bool unread) {
    const wefti_manifest *m = f->manifest;
    f->file_count = m->file_count;
    WEFT_NEW_ARRAY(f->readers, wefti_reader *, m->file_count);
    WEFT_NEW_ARRAY(f->files, wefti_safetensors *, m->file_count);
    bool *holds = wefti_arena_alloc(m->arena, (size_t)(m->file_count + 1) * sizeof *holds);
    WEFT_REQUIRE(holds, WEFT_E_NOMEM, "no memory for a list of files");
    for (int64_t k = 0; k < m->tensor_count; k++)
        if (m->tensors[k].file >= 0) holds[m->tensors[k].file] = true;
    for (int64_t k = 0; k < m->sliced.count; k++)
        if (m->sliced.slices[k].file >= 0) holds[m->sliced.slices[k].file] = true;
    for (int64_t i = 0; i < m->file_count; i++) {
        char *path = wefti_format("%s/%s", f->path, m->files[i].name);
        WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
        weft_status status = open_file(f, i, holds[i], path, unread);
        wefti_free(path);
        if (status < 0) return status;
    }
    return WEFT_OK;
}
