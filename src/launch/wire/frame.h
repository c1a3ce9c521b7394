/* What goes over a connection of the control plane: frames. The format, with its version, is
 * docs/reference/format-wire.md.
 *
 * A frame is a header (length of the body, kind, number in this direction), the body, and a MAC
 * over both under the connection's key. Its number must be the next one, so that no frame can be
 * repeated, left out or moved. Lengths are checked against the kind's limit before a byte of the
 * body is waited for. Nothing here touches a socket. */
#ifndef WEFTI_WIRE_FRAME_H
#define WEFTI_WIRE_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "topo/limits.h"
#include "launch/auth.h"

enum {
    WEFTI_WIRE_VERSION = 1,
    WEFTI_FRAME_HEADER = 16,
    WEFTI_FRAME_MAC = WEFTI_DIGEST_BYTES,
    WEFTI_FRAME_EXTRA = WEFTI_FRAME_HEADER + WEFTI_FRAME_MAC,
    WEFTI_NAME_MAX = 255,      /* node ids, hosts, jobs */
    WEFTI_TEXT_MAX = 4000,     /* abort reasons */
    WEFTI_LEAVE_MAX = 65536,   /* what a member has called */
    WEFTI_STATE_RANK = 40,     /* bytes of a rank's health */
    WEFTI_IDENTITY_MAX = 32768 /* what a process is about to run */
};

/* kind, from the scheduler?, limit of the body */
#define WEFTI_FRAME_LIST(X)                                                                        \
    X(JOIN, false, 1280)                                                                           \
    X(ENTRY, false, WEFTI_ENTRY_MAX + 16)                                                          \
    X(BEAT, false, 256)                                                                            \
    X(FAIL, false, WEFTI_TEXT_MAX + 16)                                                            \
    X(LEAVE, false, WEFTI_LEAVE_MAX)                                                               \
    X(WORLD, true, WEFTI_TEXT_MAX + 72 + 12 * WEFTI_RANKS_MAX)                                     \
    X(ENTRIES, true, WEFTI_ENTRIES_MAX + 16)                                                       \
    X(HEARD, true, 0)                                                                              \
    X(ABORT, true, WEFTI_TEXT_MAX + 16)                                                            \
    X(REFUSED, true, WEFTI_TEXT_MAX + 16)                                                          \
    X(GOODBYE, true, 0)                                                                            \
    X(ENDED, false, WEFTI_TEXT_MAX + 16)                                                           \
    X(WATCH, false, 8)                                                                             \
    X(OVER, true, WEFTI_TEXT_MAX + 16)                                                             \
    X(ARM, false, 16 + WEFTI_RANKS_MAX / 8)                                                        \
    X(HALT, true, WEFTI_TEXT_MAX + 20)                                                             \
    X(STANDING, false, 32 + 4 * WEFTI_RANKS_MAX)                                                   \
    X(MEND, true, 32 + 20 * WEFTI_RANKS_MAX)                                                       \
    X(WHOLE, false, 8)                                                                             \
    X(GO, true, 12)                                                                                \
    X(HEALTH, false, 0)                                                                            \
    X(STATE, true, WEFTI_TEXT_MAX + 64 + WEFTI_STATE_RANK * WEFTI_RANKS_MAX)                       \
    X(KEEP, false, 20)                                                                             \
    X(SEATS, true, 12 + 4 * WEFTI_RANKS_MAX)                                                       \
    X(LOST, false, WEFTI_TEXT_MAX + 24)                                                            \
    X(AGAIN, true, 12)                                                                             \
    X(ARMED, true, 0)                                                                              \
    X(HOSTS, false, 16 + 12 * WEFTI_RANKS_MAX)                                                     \
    X(REGISTER, false, 32 + WEFTI_NAME_MAX)                                                        \
    X(IDENTITY, false, WEFTI_IDENTITY_MAX)
typedef enum wefti_frame_kind {
    WEFTI_FRAME_NONE,
#define WEFTI_FRAME_ROW(name, from_scheduler, limit) WEFTI_FRAME_##name,
    WEFTI_FRAME_LIST(WEFTI_FRAME_ROW)
#undef WEFTI_FRAME_ROW
        WEFTI_FRAME_KINDS
} wefti_frame_kind;

/* One direction of a connection. */
typedef struct wefti_wire_stream {
    unsigned char key[WEFTI_DIGEST_BYTES];
    bool from_scheduler;
    uint64_t number; /* of the next frame */
} wefti_wire_stream;

typedef struct wefti_frame {
    wefti_frame_kind kind;
    const unsigned char *body; /* borrowed from the input */
    size_t bytes;
} wefti_frame;

/* Make a frame of WEFTI_FRAME_EXTRA + `bytes` around the body, which stands in it already. */
void wefti_frame_seal(wefti_wire_stream *stream, wefti_frame_kind kind, size_t bytes,
                      unsigned char *frame);
/* The frame at the start of data[0..bytes). WEFT_PENDING: more is needed; *out_taken is then how
 * many bytes the frame will have, or 0 while that is unknown. */
weft_status wefti_frame_parse(wefti_wire_stream *stream, const unsigned char *data, size_t bytes,
                              wefti_frame *out, size_t *out_taken) WEFT_CHECKED;

/* --- bodies: little-endian numbers and texts with a length in front */

typedef struct wefti_pack { /* into fixed room; `full` is sticky */
    unsigned char *data;
    size_t used, room;
    bool full;
} wefti_pack;
void wefti_pack_u32(wefti_pack *p, uint32_t x);
void wefti_pack_u64(wefti_pack *p, uint64_t x);
void wefti_pack_text(wefti_pack *p, const char *text, size_t limit); /* longer ones are cut */

typedef struct wefti_unpack { /* `bad` is sticky; everything read afterwards is 0 or "" */
    const unsigned char *data;
    size_t at, bytes;
    bool bad;
} wefti_unpack;
wefti_unpack wefti_unpack_of(const wefti_frame *frame); /* its body */
/* WEFT_E_CORRUPT if it is bad, or not all of it was read. what: for the message, "join" */
weft_status wefti_unpack_end(const wefti_unpack *u, const char *what) WEFT_CHECKED;
uint32_t wefti_unpack_u32(wefti_unpack *u);
uint64_t wefti_unpack_u64(wefti_unpack *u);
/* Printable text into out[limit + 1]; anything else is bad. */
void wefti_unpack_text(wefti_unpack *u, char *out, size_t limit);

#endif
