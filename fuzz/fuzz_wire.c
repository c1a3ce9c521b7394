/* Fuzzes the input of a connection of the control plane. The input is a stream of frames for either
 * side, signed or not. Accepted frames must decode to valid fields. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "launch/wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
    if (!holds) abort();
}

static void check_seats(wefti_seated *seats, int32_t size, int32_t numbers) {
    for (int32_t r = 0; r < size; r++)
        require(seats[r].host >= 0 && seats[r].host < size && seats[r].number >= 0 &&
                seats[r].number < numbers);
    wefti_free(seats);
}

/* If a decoder accepts a body, its fields must be within their limits. */
static void decode(const wefti_frame *frame) {
    wefti_join join;
    wefti_standing standing;
    wefti_abort_reason verdict;
    wefti_entry card;
    wefti_world_message placed;
    wefti_seated *seats;
    if (wefti_join_decode(frame, &join) >= 0) {
        unsigned char again[WEFTI_MESSAGE_MAX];
        require(wefti_join_encode(&join, again) == frame->bytes);
        require(memcmp(again, frame->body, frame->bytes) == 0);
    }
    if (wefti_beat_decode(frame, 1000, &standing) >= 0)
        require(strlen(standing.what) < WEFTI_POSITION_TEXT && standing.since_ns <= 1000);
    wefti_end end;
    if (wefti_end_decode(frame, &end) >= 0)
        require(end.rank >= 0 && end.rank < WEFTI_RANKS_MAX && !(end.code && end.signal));
    static wefti_call_records records;
    if (wefti_records_decode(frame, &records) >= 0) require(records.count <= WEFTI_CALL_RECORDS);
    wefti_span span;
    if (wefti_span_decode(frame, &span) >= 0) require(span.first >= 0 && span.count > 0);
    wefti_registration launcher;
    if (wefti_registration_decode(frame, &launcher) >= 0) {
        unsigned char again[WEFTI_MESSAGE_MAX];
        require(wefti_registration_encode(&launcher, again) == frame->bytes);
        require(memcmp(again, frame->body, frame->bytes) == 0);
    }
    wefti_identity identity;
    if (wefti_identity_decode(frame, &identity) >= 0) {
        wefti_text text = {0};
        require(identity.bytes == frame->bytes);
        require(wefti_identity_compare(&identity, &identity, &text) == 0);
        if (identity.bytes > 0) identity.body[identity.bytes - 1] ^= 1;
        const wefti_identity sent = {.body = (unsigned char *)(uintptr_t)frame->body,
                                     .bytes = frame->bytes};
        wefti_identity other;
        const wefti_frame changed = {.kind = frame->kind, identity.body, identity.bytes};
        if (wefti_identity_decode(&changed, &other) >= 0) {
            require(wefti_identity_compare(&other, &sent, &text) >= 0);
            wefti_identity_free(&other);
        }
        wefti_text_free(&text);
        wefti_identity_free(&identity);
    }
    wefti_halt halt;
    if (wefti_halt_decode(frame, &halt) >= 0) require(halt.generation > 0 && halt.failed >= 0);
    wefti_stand stands;
    uint64_t stood_in;
    int32_t *holds;
    if (wefti_standing_decode(frame, 3, &stood_in, &stands, &holds) >= 0) {
        for (int32_t i = 0; i < stands.holds_count; i++) require(holds[i] >= 0 && holds[i] < 3);
        require(stands.step >= 0 || (!stands.ready && stands.holds_count == 0));
        wefti_free(holds);
    }
    wefti_mend_message mend;
    static wefti_job_health job;
    wefti_rank_health *health;
    if (wefti_health_decode(frame, &job, &health) >= 0) {
        unsigned char *again;
        size_t bytes;
        require(job.here <= job.size && (job.ranks == 0 || job.ranks == job.size));
        for (int32_t r = 0; r < job.ranks; r++)
            require(health[r].host < job.ranks && health[r].step >= 0 && health[r].pace_ns >= 0);
        require(wefti_health_encode(&job, health, &again, &bytes) >= 0);
        require(bytes == frame->bytes && memcmp(again, frame->body, bytes) == 0);
        wefti_free(again);
        wefti_free(health);
    }
    wefti_mend_rank *ranks;
    if (wefti_mend_decode(frame, &mend, &ranks, &seats) >= 0) {
        for (int32_t r = 0; r < mend.size; r++)
            require(ranks[r].source >= -3 && ranks[r].source < mend.size && ranks[r].was >= -1);
        check_seats(seats, mend.size, mend.numbers);
        wefti_free(ranks);
    }
    wefti_arm arm;
    if (wefti_arm_decode(frame, &arm) >= 0)
        require(arm.least >= 0 && arm.patience_s >= 0 && arm.most >= 0 &&
                arm.most <= WEFTI_RANKS_MAX);
    uint64_t generation;
    if (wefti_generation_decode(frame, &generation) >= 0) require(generation > 0);
    int32_t used;
    if (wefti_go_decode(frame, &generation, &used) >= 0) require(generation > 0 && used >= 0);
    wefti_hosts hosts;
    if (wefti_hosts_decode(frame, &hosts, &seats) >= 0)
        check_seats(seats, hosts.size, WEFTI_RANKS_MAX);
    if (wefti_abort_reason_decode(frame, &verdict) >= 0)
        require(verdict.status < 0 && verdict.failed >= WEFT_RANK_NONE &&
                strlen(verdict.text) <= WEFTI_TEXT_MAX);
    for (int32_t ranks = 1; ranks < 4; ranks++)
        if (wefti_entry_decode(frame, ranks, &card) >= 0)
            require(WEFTI_ENTRY_HEAD + card.bytes * (size_t)ranks == frame->bytes);
    if (wefti_world_message_decode(frame, &placed, &seats) >= 0)
        check_seats(seats, placed.size, placed.numbers);
}

/* Unsigned frames: none may be accepted. */
static void unsigned_frames(const uint8_t *data, size_t size, bool from_scheduler) {
    wefti_wire_stream stream = {.key = {1, 2, 3}, .from_scheduler = from_scheduler};
    wefti_frame frame;
    size_t taken;
    weft_status status = wefti_frame_parse(&stream, data, size, &frame, &taken);
    require(status != WEFT_OK && stream.number == 0);
}

/* Corrects the MAC, as a broken peer with the key would send it. */
static void signed_frame(const uint8_t *data, size_t size) {
    static unsigned char copy[70000 + WEFTI_FRAME_EXTRA];
    if (size < WEFTI_FRAME_HEADER || size > 70000) return;
    size_t body = size - WEFTI_FRAME_HEADER;
    wefti_wire_stream sends = {.key = {1, 2, 3}}, receives = {.key = {1, 2, 3}};
    sends.number = receives.number = data[8];
#define COMES_FROM(name, from_scheduler, limit) [WEFTI_FRAME_##name] = from_scheduler,
    static const bool sides[WEFTI_FRAME_KINDS] = {WEFTI_FRAME_LIST(COMES_FROM)};
#undef COMES_FROM
    receives.from_scheduler = data[4] < WEFTI_FRAME_KINDS && sides[data[4]];
    memcpy(copy + WEFTI_FRAME_HEADER, data + WEFTI_FRAME_HEADER, body);
    wefti_frame_seal(&sends, (wefti_frame_kind)data[4], body, copy);
    wefti_frame frame;
    size_t taken;
    if (wefti_frame_parse(&receives, copy, body + WEFTI_FRAME_EXTRA, &frame, &taken) != WEFT_OK)
        return;
    require(frame.bytes == body && taken == body + WEFTI_FRAME_EXTRA);
    decode(&frame);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    unsigned_frames(data, size, false);
    unsigned_frames(data, size, true);
    signed_frame(data, size);
    return 0;
}
