/* Bytes of a disk stream that lie in other files. See disk.h. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "device/disk_parts.h"

/* The number of the first loan that ends behind `at`. */
static int64_t first_behind(const wefti_disk_stream *d, int64_t at) {
    int64_t low = 0, high = d->loan_count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (d->loans[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

const wefti_disk_loan *wefti_disk_loan_at(const wefti_disk_stream *d, int64_t at, int64_t *end) {
    const int64_t i = first_behind(d, at);
    if (i == d->loan_count) return NULL;
    const wefti_disk_loan *loan = &d->loans[i];
    const bool covers = loan->begin <= at;
    const int64_t edge = covers ? loan->end : loan->begin;
    if (edge < *end) *end = edge;
    return covers ? loan : NULL;
}

int64_t wefti_disk_stream_lent(wefti_disk_stream *d, int64_t offset, int64_t bytes) {
    int64_t sum = 0;
    (void)pthread_mutex_lock(&d->lock);
    for (int64_t at = offset, end; at < offset + bytes; at = end) {
        end = offset + bytes;
        if (wefti_disk_loan_at(d, at, &end)) sum += end - at;
    }
    (void)pthread_mutex_unlock(&d->lock);
    return sum;
}

/* Makes room for a loan at number `i`. */
static weft_status open_gap(wefti_disk_stream *d, int64_t i) {
    WEFT_TRY(WEFT_GROW(d->loans, d->loan_count, d->loan_cap));
    memmove(d->loans + i + 1, d->loans + i, (size_t)(d->loan_count - i) * sizeof *d->loans);
    d->loan_count++;
    return WEFT_OK;
}

weft_status wefti_disk_end_loans(wefti_disk_stream *d, int64_t begin, int64_t end) {
    int64_t i = first_behind(d, begin);
    while (i < d->loan_count && d->loans[i].begin < end) {
        wefti_disk_loan *loan = &d->loans[i];
        if (loan->begin < begin && loan->end > end) {
            WEFT_TRY(open_gap(d, i));
            d->loans[i].end = begin;
            d->loans[i + 1].begin = end;
            return WEFT_OK;
        }
        if (loan->begin < begin) {
            loan->end = begin;
            i++;
        } else if (loan->end > end) {
            loan->begin = end;
            return WEFT_OK;
        } else {
            d->loan_count--;
            memmove(loan, loan + 1, (size_t)(d->loan_count - i) * sizeof *loan);
        }
    }
    return WEFT_OK;
}

/* The number of a file among the lenders, which has the descriptor from now on; -1: there is no
 * such file so far. */
static int64_t lender_of(const wefti_disk_stream *d, const struct stat *info) {
    for (int64_t i = 0; i < d->lender_count; i++)
        if (d->lenders[i].device == (uint64_t)info->st_dev &&
            d->lenders[i].number == (uint64_t)info->st_ino)
            return i;
    return -1;
}

/* Takes over the descriptor, even on failure. *out -1: the file cannot be used. */
static weft_status add_lender(wefti_disk_stream *d, const char *path, int fd, int64_t *out) {
    struct stat info;
    int error = 0;
    wefti_disk_file file = {.fd = fd, .alignment = 1};
    *out = fstat(fd, &info) ? -1 : lender_of(d, &info);
    weft_status status = WEFT_OK;
    if (*out < 0) {
        file.device = (uint64_t)info.st_dev;
        file.number = (uint64_t)info.st_ino;
        file.path = wefti_strdup(path);
        status = file.path ? WEFT_GROW(d->lenders, d->lender_count, d->lender_cap)
                           : WEFT_RAISE(WEFT_E_NOMEM, "no memory for the name of a file");
        if (status >= 0 && d->own.alignment > 1)
            status = wefti_disk_go_direct(&file, false, &error);
    }
    if (status < 0 || error || *out >= 0) {
        wefti_free(file.path);
        wefti_reader_give_back(fd);
        return status;
    }
    *out = d->lender_count;
    d->lenders[d->lender_count++] = file;
    return WEFT_OK;
}

weft_status wefti_disk_stream_lend(wefti_disk_stream *d, int64_t offset, int64_t bytes,
                                   const wefti_reader *reader, int64_t at, bool *out) {
    int64_t file;
    *out = false;
    WEFT_REQUIRE(offset >= 0 && bytes > 0 && bytes <= d->bytes - offset && at >= 0 &&
                     bytes <= wefti_reader_bytes(reader) - at,
                 WEFT_E_BUG, "%lld bytes at offset %lld of a file in %s cannot lie at byte %lld",
                 (long long)bytes, (long long)offset, d->directory, (long long)at);
    const bool apart = d->cipher || wefti_disk_stream_records(d, offset, offset + bytes, NULL);
    const int fd = apart ? -1 : wefti_reader_take_file(reader);
    if (fd < 0) return WEFT_OK;
    (void)pthread_mutex_lock(&d->lock);
    weft_status status = add_lender(d, wefti_reader_path(reader), fd, &file);
    if (status >= 0) status = wefti_disk_end_loans(d, offset, offset + bytes);
    if (status >= 0 && file >= 0) {
        const int64_t i = first_behind(d, offset);
        status = open_gap(d, i);
        if (status >= 0) d->loans[i] = (wefti_disk_loan){offset, offset + bytes, at - offset, file};
        *out = status >= 0;
    }
    (void)pthread_mutex_unlock(&d->lock);
    return status;
}

void wefti_disk_loans_close(wefti_disk_stream *d) {
    for (int64_t i = 0; i < d->lender_count; i++) {
        wefti_reader_give_back(d->lenders[i].fd);
        wefti_free(d->lenders[i].path);
    }
    wefti_free(d->lenders);
    wefti_free(d->loans);
}
