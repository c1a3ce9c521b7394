/* See host_identity.h. */
#include "launch/host_identity.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/io.h"
#include "base/memory.h"

static weft_status boot_id(char out[64]) {
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    char *text;
    int64_t bytes;
    WEFT_TRY(wefti_file_read(path, 4096, &text, &bytes));
    size_t n = strcspn(text, "\n");
    snprintf(out, 64, "%.*s", n < 63 ? (int)n : 63, text);
    wefti_free(text);
    return WEFT_OK;
}

weft_status wefti_host_identity(char out[WEFTI_NAME_MAX + 1]) {
    static const char *const space[] = {"pid", "net", "ipc", "user"};
    char boot[64], path[64];
    WEFT_TRY(boot_id(boot));
    int used = snprintf(out, WEFTI_NAME_MAX + 1, "%s", boot);
    for (size_t i = 0; i < sizeof space / sizeof *space; i++) {
        struct stat s;
        snprintf(path, sizeof path, "/proc/self/ns/%s", space[i]);
        WEFT_REQUIRE(stat(path, &s) == 0, WEFT_E_IO, "%s: %s", path, strerror(errno));
        used += snprintf(out + used, (size_t)(WEFTI_NAME_MAX + 1 - used), " %s:%lu", space[i],
                         (unsigned long)s.st_ino);
    }
    return WEFT_OK;
}
