/* Memory of other processes: see server/reach.h. */
#include "server/reach.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/io.h"
#include "base/secret/secret.h"

void wefti_probe_make(wefti_probe *probe) {
    *probe = (wefti_probe){.process = getpid(), .at = (uint64_t)(uintptr_t)probe->token};
    if (wefti_random_bytes(probe->token, sizeof probe->token) < 0) probe->process = 0;
}

void wefti_probe_encode(const wefti_probe *probe, unsigned char out[WEFTI_PROBE_BYTES]) {
    wefti_put_number(out, (uint64_t)probe->process, 8);
    wefti_put_number(out + 8, probe->at, 8);
    memcpy(out + 16, probe->token, WEFTI_PROBE_TOKEN);
}

void wefti_probe_decode(const unsigned char in[WEFTI_PROBE_BYTES], wefti_probe *out) {
    out->process = (int64_t)wefti_get_number(in, 8);
    out->at = wefti_get_number(in + 8, 8);
    memcpy(out->token, in + 16, WEFTI_PROBE_TOKEN);
}

bool wefti_probe_reads(const wefti_probe *probe) {
    unsigned char found[WEFTI_PROBE_TOKEN];
    return probe->process > 0 && probe->process <= INT32_MAX &&
           wefti_reach_read(probe->process, probe->at, found, sizeof found) &&
           !memcmp(found, probe->token, sizeof found);
}

bool wefti_reach_read(int64_t process, uint64_t from, void *to, int64_t bytes) {
#if defined(__linux__)
    for (int64_t done = 0; done < bytes;) {
        struct iovec here = {(char *)to + done, (size_t)(bytes - done)},
                     there = {(void *)(uintptr_t)(from + (uint64_t)done), (size_t)(bytes - done)};
        const ssize_t got = process_vm_readv((pid_t)process, &here, 1, &there, 1, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += got;
    }
    return true;
#else
    (void)process;
    (void)from;
    (void)to;
    return bytes == 0;
#endif
}
