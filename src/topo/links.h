/* Links between ranks: what moving bytes costs, as measured (docs/format-links.md) or assumed.
 * Hosts have consecutive ranks, as launchers number them, and as many each. */
#ifndef WEFTI_LINKS_H
#define WEFTI_LINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json/json.h"
#include "base/status.h"

/* Time of moving b bytes: latency + b * seconds_per_byte. */
typedef struct wefti_link {
    double latency, seconds_per_byte;
} wefti_link;

typedef struct wefti_measured_link {
    double latency_seconds, bytes_per_second; /* 0, 0: there was no such pair of ranks */
} wefti_measured_link;

typedef struct wefti_links {
    bool measured;          /* false: nothing below is known */
    bool by_messages;       /* same_host is that of messages, not of shared memory */
    int32_t ranks_per_host; /* 0: all ranks are on one host */
    wefti_measured_link same_host, between_hosts;
} wefti_links;

static inline bool wefti_link_known(const wefti_measured_link *link) {
    return link->bytes_per_second > 0;
}
bool wefti_links_equal(const wefti_links *a, const wefti_links *b);

/* What is wrong is told with the file, or `name`, and the key. */
weft_status wefti_links_load(const char *path, wefti_links *out) WEFT_CHECKED;
weft_status wefti_links_parse(const char *name, const char *text, int64_t bytes,
                              wefti_links *out) WEFT_CHECKED;
/* Member `key` of an object, and back: {"latency_seconds": 4.1e-07, "bytes_per_second": 1.23e+10}
 * or null. */
weft_status wefti_link_read(const wefti_json *object, const char *key,
                            wefti_measured_link *out) WEFT_CHECKED;
void wefti_link_print(const wefti_measured_link *link, wefti_text *out);

/* The link that groups use which lie in blocks of `block` consecutive ranks, of which the first one
 * begins at rank `first` and the last one ends before `first` + `ranks`: that between hosts as soon
 * as one block lies on several. `links` are measured. */
wefti_link wefti_links_of_blocks(const wefti_links *links, int64_t first, int64_t ranks,
                                 int64_t block);

#endif
