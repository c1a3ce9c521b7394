/* Links between ranks: the cost of moving bytes, measured (docs/reference/format-links.md) or
 * assumed. Each host has consecutive ranks, as launchers number them, and all hosts have equally
 * many. */
#ifndef WEFTI_LINKS_H
#define WEFTI_LINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json/json.h"
#include "base/status.h"

/* Seconds to move b bytes: latency + b * seconds_per_byte. */
typedef struct wefti_link {
    double latency, seconds_per_byte;
} wefti_link;

typedef struct wefti_measured_link {
    double latency_seconds, bytes_per_second; /* 0, 0: no such pair of ranks was measured */
} wefti_measured_link;

typedef struct wefti_links {
    bool measured;          /* false: all values below are unknown */
    bool by_messages;       /* same_host was measured with messages, not with shared memory */
    int32_t ranks_per_host; /* 0: all ranks are on one host */
    wefti_measured_link same_host, between_hosts;
} wefti_links;

static inline bool wefti_link_known(const wefti_measured_link *link) {
    return link->bytes_per_second > 0;
}

/* An error message has `name`, and the key. */
weft_status wefti_links_parse(const char *name, const char *text, int64_t bytes,
                              wefti_links *out) WEFT_CHECKED;
/* Reads member `key` of an object, and prints it: {"latency_seconds": 4.1e-07, "bytes_per_second":
 * 1.23e+10} or null. */
weft_status wefti_link_read(const wefti_json *object, const char *key,
                            wefti_measured_link *out) WEFT_CHECKED;
void wefti_link_print(const wefti_measured_link *link, wefti_text *out);

/* The link of groups that lie in blocks of `block` consecutive ranks. The first block begins at
 * rank `first`; the last block ends before `first` + `ranks`. If any block lies on several hosts,
 * it is the link between hosts. `links` must be measured. */
wefti_link wefti_links_of_blocks(const wefti_links *links, int64_t first, int64_t ranks,
                                 int64_t block);

#endif
