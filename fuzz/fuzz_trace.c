/* Fuzzes traces that are put together. What comes out is JSON if what came in is: names and numbers
 * are passed on as they are. It is a trace again, and stays so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/io.h"
#include "base/memory.h"
#include "weft/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char in[64], out[64], again[64];
    static int file = -1;
    if (file < 0) {
        file = memfd_create("fuzz.trace", 0);
        (void)snprintf(in, sizeof in, "/proc/self/fd/%d", file);
        (void)snprintf(out, sizeof out, "/tmp/weft-fuzz-trace-%d", (int)getpid());
        (void)snprintf(again, sizeof again, "%s-again", out);
    }
    if (file < 0 || ftruncate(file, 0) || pwrite(file, data, size, 0) != (ssize_t)size) abort();
    const char *const files[2] = {in, in}, *const first[1] = {out};
    if (weft_trace_merge(files, 2, out) < 0) {
        if (!*weft_error_message()) abort();
        return 0;
    }
    char *one, *two;
    int64_t bytes, more;
    if (weft_trace_merge(first, 1, again) < 0) return 0; /* times that have become too large */
    if (wefti_file_read(out, 1 << 28, &one, &bytes) < 0) abort();
    if (wefti_file_read(again, 1 << 28, &two, &more) < 0) abort();
    if (bytes != more || memcmp(one, two, (size_t)bytes) != 0) abort();
    wefti_free(one);
    wefti_free(two);
    return 0;
}
