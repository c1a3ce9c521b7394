/* Frames: see wire.h. */
#include "launch/wire/frame.h"

#include <string.h>

#include "base/io.h"

typedef struct kind_rule {
    bool from_scheduler;
    uint32_t limit;
} kind_rule;
static const kind_rule rule[WEFTI_FRAME_KINDS] = {
#define RULE_ROW(name, from, most) [WEFTI_FRAME_##name] = {.from_scheduler = from, .limit = most},
    WEFTI_FRAME_LIST(RULE_ROW)
#undef RULE_ROW
};

void wefti_frame_seal(wefti_wire_stream *stream, wefti_frame_kind kind, size_t bytes,
                      unsigned char *frame) {
    wefti_put_number(frame, bytes, 4);
    wefti_put_number(frame + 4, (uint64_t)kind, 4);
    wefti_put_number(frame + 8, stream->number++, 8);
    size_t signed_bytes = WEFTI_FRAME_HEADER + bytes;
    wefti_hmac(stream->key, sizeof stream->key, frame, signed_bytes, frame + signed_bytes);
}

weft_status wefti_frame_parse(wefti_wire_stream *stream, const unsigned char *data, size_t bytes,
                              wefti_frame *out, size_t *out_taken) {
    *out_taken = 0;
    if (bytes < WEFTI_FRAME_HEADER) return WEFT_PENDING;
    uint64_t length = wefti_get_number(data, 4), kind = wefti_get_number(data + 4, 4),
             number = wefti_get_number(data + 8, 8);
    WEFT_REQUIRE(kind > WEFTI_FRAME_NONE && kind < WEFTI_FRAME_KINDS &&
                     rule[kind].from_scheduler == stream->from_scheduler,
                 WEFT_E_CORRUPT, "a frame of kind %lu, which does not come this way",
                 (unsigned long)kind);
    WEFT_REQUIRE(length <= rule[kind].limit, WEFT_E_CORRUPT,
                 "a frame of kind %lu with %lu bytes; %lu are the most", (unsigned long)kind,
                 (unsigned long)length, (unsigned long)rule[kind].limit);
    WEFT_REQUIRE(number == stream->number, WEFT_E_CORRUPT, "frame %lu where number %lu is due",
                 (unsigned long)number, (unsigned long)stream->number);
    *out_taken = WEFTI_FRAME_EXTRA + (size_t)length;
    if (bytes < *out_taken) return WEFT_PENDING;
    unsigned char mac[WEFTI_FRAME_MAC];
    size_t signed_bytes = WEFTI_FRAME_HEADER + (size_t)length;
    wefti_hmac(stream->key, sizeof stream->key, data, signed_bytes, mac);
    WEFT_REQUIRE(wefti_equal_secretly(mac, data + signed_bytes, sizeof mac), WEFT_E_CORRUPT,
                 "a frame that was not signed with this connection's key");
    stream->number++;
    *out = (wefti_frame){
        .kind = (wefti_frame_kind)kind, .body = data + WEFTI_FRAME_HEADER, .bytes = (size_t)length};
    return WEFT_OK;
}

static unsigned char *reserve(wefti_pack *p, size_t bytes) {
    if (p->full || bytes > p->room - p->used) {
        p->full = true;
        return NULL;
    }
    p->used += bytes;
    return p->data + p->used - bytes;
}
void wefti_pack_u32(wefti_pack *p, uint32_t x) {
    unsigned char *out = reserve(p, 4);
    if (out) wefti_put_number(out, x, 4);
}
void wefti_pack_u64(wefti_pack *p, uint64_t x) {
    unsigned char *out = reserve(p, 8);
    if (out) wefti_put_number(out, x, 8);
}

static bool printable(unsigned char c) {
    return c >= 0x20 && c != 0x7f;
}

void wefti_pack_text(wefti_pack *p, const char *text, size_t limit) {
    size_t n = text ? strlen(text) : 0;
    if (n > limit) n = limit;
    wefti_pack_u32(p, (uint32_t)n);
    unsigned char *out = reserve(p, n);
    for (size_t i = 0; out && i < n; i++)
        out[i] = printable((unsigned char)text[i]) ? (unsigned char)text[i] : ' ';
}

wefti_unpack wefti_unpack_of(const wefti_frame *frame) {
    return (wefti_unpack){.data = frame->body, .bytes = frame->bytes};
}
weft_status wefti_unpack_end(const wefti_unpack *u, const char *what) {
    WEFT_REQUIRE(!u->bad && u->at == u->bytes, WEFT_E_CORRUPT,
                 "a %s message that is not well formed", what);
    return WEFT_OK;
}
static const unsigned char *take(wefti_unpack *u, size_t bytes) {
    if (u->bad || bytes > u->bytes - u->at) {
        u->bad = true;
        return NULL;
    }
    u->at += bytes;
    return u->data + u->at - bytes;
}
uint32_t wefti_unpack_u32(wefti_unpack *u) {
    const unsigned char *data = take(u, 4);
    return data ? (uint32_t)wefti_get_number(data, 4) : 0;
}
uint64_t wefti_unpack_u64(wefti_unpack *u) {
    const unsigned char *data = take(u, 8);
    return data ? wefti_get_number(data, 8) : 0;
}

void wefti_unpack_text(wefti_unpack *u, char *out, size_t limit) {
    out[0] = 0;
    size_t n = wefti_unpack_u32(u);
    if (n > limit) u->bad = true;
    const unsigned char *data = take(u, n);
    for (size_t i = 0; data && i < n; i++)
        if (!printable(data[i])) u->bad = true;
    if (u->bad || n == 0) return;
    memcpy(out, data, n);
    out[n] = 0;
}
