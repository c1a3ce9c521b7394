/* The calls of a member: member.h. A call leaves its request for the member's thread, which
 * carries it out. */
#include "launch/member/member.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/memory.h"
#include "launch/host_identity.h"
#include "launch/member/state.h"
#include "launch/socket.h"

static const int64_t second_ns = 1000000000;

static bool has_failed(const wefti_member *m) {
    return m->caller.state == WEFTI_MEMBER_FAILED;
}

static void release(wefti_member *m) {
    wefti_free(m->last.data);
    wefti_free(m->now.data);
    wefti_free(m->giving_up);
    wefti_free(m->host);
    wefti_identity_free(&m->identity);
    wefti_member_forget_worlds(m);
    wefti_free(m->mend.source);
    wefti_free(m);
}

static void end(wefti_member *m) {
    wefti_caller_end(&m->caller);
    release(m);
}

static weft_status copy_name(char out[WEFTI_NAME_MAX + 1], const char *name, const char *what) {
    if (!name) name = "";
    size_t n = strlen(name);
    WEFT_REQUIRE(n <= WEFTI_NAME_MAX, WEFT_E_ARG, "the %s has %zu characters; %d are the most",
                 what, n, WEFTI_NAME_MAX);
    for (size_t i = 0; i < n; i++)
        WEFT_REQUIRE((unsigned char)name[i] >= 0x20 && name[i] != 0x7f, WEFT_E_ARG,
                     "the %s has a character that cannot be printed", what);
    memcpy(out, name, n + 1);
    return WEFT_OK;
}

static weft_status fill_in(wefti_member *m, const wefti_member_options *o) {
    m->join.number = o->rank < 0 ? -1 : o->rank;
    m->join.size = o->size <= 0 ? -1 : o->size;
    m->join.pid = (int64_t)getpid();
    m->join.launcher = o->launcher;
    WEFT_TRY(copy_name(m->join.job, o->job, "name of the job (WEFT_JOB)"));
    WEFT_TRY(copy_name(m->join.node, o->node, "node id"));
    WEFT_TRY(copy_name(m->join.facts, o->facts, "description of the job"));
    if (o->host && *o->host)
        WEFT_TRY(copy_name(m->join.host, o->host, "host's identity"));
    else
        WEFT_TRY(wefti_host_identity(m->join.host));
    if (o->identity) WEFT_TRY(wefti_identity_copy(o->identity, &m->identity));
    return WEFT_OK;
}

static weft_status begin(const wefti_member_options *options, wefti_member **out) {
    wefti_member *m;
    WEFT_NEW(m, wefti_member);
    m->leave_ns = wefti_ns_of_seconds(options->leave_seconds, 5);
    weft_status status = fill_in(m, options);
    if (status >= 0) status = wefti_caller_begin(&m->caller, &wefti_protocol_member, options);
    if (status < 0)
        release(m);
    else
        *out = m;
    return status;
}

weft_status wefti_member_join(const wefti_member_options *options, wefti_member **out) {
    wefti_member *m;
    weft_status status = WEFT_OK;
    WEFT_TRY(begin(options, &m));
    /* The thread keeps the time, and says when it is up. */
    pthread_mutex_lock(&m->caller.lock);
    while (m->caller.state == WEFTI_MEMBER_JOINING)
        pthread_cond_wait(&m->caller.changed, &m->caller.lock);
    if (has_failed(m)) status = wefti_caller_reason(&m->caller);
    pthread_mutex_unlock(&m->caller.lock);
    if (status < 0)
        end(m);
    else
        *out = m;
    return status;
}

int32_t wefti_member_rank(const wefti_member *m) {
    return m->placed.rank;
}
int32_t wefti_member_size(const wefti_member *m) {
    return m->placed.size;
}
uint64_t wefti_member_generation(wefti_member *m) {
    pthread_mutex_lock(&m->caller.lock);
    uint64_t generation = m->placed.generation;
    pthread_mutex_unlock(&m->caller.lock);
    return generation;
}
const int32_t *wefti_member_hosts(const wefti_member *m) {
    return m->host;
}

weft_status wefti_member_interface(wefti_member *m, char out[WEFTI_INTERFACE_TEXT]) {
    pthread_mutex_lock(&m->caller.lock);
    weft_status status = wefti_socket_interface(m->caller.link.fd, out);
    pthread_mutex_unlock(&m->caller.lock);
    return status;
}

void wefti_member_data_key(wefti_member *m, unsigned char out[WEFTI_DIGEST_BYTES]) {
    unsigned char text[32] = "weft data plane";
    wefti_put_number(text + 16, wefti_member_generation(m), 8);
    wefti_put_number(text + 24, (uint32_t)m->placed.size, 4);
    wefti_hmac_own(m->caller.secret.key, sizeof m->caller.secret.key, text, sizeof text, out);
}

static weft_status begin_swap(wefti_member *m, const void *entry, size_t bytes, void *entries) {
    WEFT_REQUIRE(bytes <= WEFTI_ENTRY_MAX, WEFT_E_ARG,
                 "an all-gather entry has %zu bytes; the most is %d", bytes, WEFTI_ENTRY_MAX);
    if (has_failed(m)) return wefti_caller_reason(&m->caller);
    if (wefti_member_is_halted(m)) return wefti_member_halt_reason(m);
    WEFT_REQUIRE(wefti_member_is_in(m) && !m->leave_word, WEFT_E_PEER,
                 "no all-gather through the scheduler: the job has ended");
    unsigned char *copy = wefti_alloc(bytes ? bytes : 1);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for an all-gather entry of %zu bytes", bytes);
    memcpy(copy, entry, bytes);
    wefti_free(m->last.data);
    m->last = m->now;
    m->now = (wefti_member_entry){.number = m->last.number + 1, .data = copy, .bytes = bytes};
    m->now_word = WEFTI_WORD_DUE;
    m->entries = entries;
    return WEFT_OK;
}

static weft_status end_swap(wefti_member *m) {
    int64_t until = wefti_now_ns() + 2 * m->caller.join_ns + 5 * second_ns;
    while (m->entries && wefti_member_is_in(m))
        if (!wefti_caller_wait(&m->caller, until)) break;
    if (wefti_member_is_halted(m)) return wefti_member_halt_reason(m);
    if (!m->entries) return WEFT_OK;
    m->entries = NULL;
    if (has_failed(m)) return wefti_caller_reason(&m->caller);
    WEFT_FAIL(WEFT_E_TIMEOUT, "an all-gather through the scheduler did not finish in time");
}

weft_status wefti_member_allgather(wefti_member *m, const void *entry, size_t bytes,
                                   void *entries) {
    pthread_mutex_lock(&m->caller.lock);
    weft_status status = begin_swap(m, entry, bytes, entries);
    if (status >= 0) {
        wefti_caller_ring(&m->caller);
        status = end_swap(m);
    }
    pthread_mutex_unlock(&m->caller.lock);
    return status;
}

static weft_status allgather(void *context, const void *entry, size_t bytes, void *entries) {
    return wefti_member_allgather(context, entry, bytes, entries);
}
wefti_exchange wefti_member_exchange(wefti_member *m) {
    return (wefti_exchange){.context = m, .allgather = allgather};
}

void wefti_member_watch(wefti_member *m, wefti_comm *comm, wefti_position *position) {
    pthread_mutex_lock(&m->caller.lock);
    m->comm = comm;
    m->position = position;
    m->beat_ns = 0; /* say so at once */
    wefti_caller_ring(&m->caller);
    wefti_member_settle(m);
    bool failed = has_failed(m), halted = wefti_member_is_halted(m);
    int32_t rank = m->mend.halt.failed;
    pthread_mutex_unlock(&m->caller.lock);
    if (failed && comm)
        wefti_comm_break(comm, m->caller.reason.failed, m->caller.reason.text);
    else if (halted && comm)
        wefti_comm_break(comm, rank, "a process has died");
}

weft_status wefti_member_check(wefti_member *m) {
    pthread_mutex_lock(&m->caller.lock);
    weft_status status = has_failed(m) ? wefti_caller_reason(&m->caller) : WEFT_OK;
    pthread_mutex_unlock(&m->caller.lock);
    return status;
}

void wefti_member_accuse(wefti_member *m, weft_status status, int failed, const char *message) {
    m->giving_up = wefti_strdup(message);
    if (m->giving_up) m->fail_word = WEFTI_WORD_DUE;
    m->fail_status = status;
    m->failed = (int32_t)failed;
}

static void fail(wefti_member *m, weft_status status, int failed, const char *message) {
    pthread_mutex_lock(&m->caller.lock);
    if (wefti_member_is_in(m) && !m->giving_up) {
        wefti_member_accuse(m, status, failed, message);
        wefti_caller_ring(&m->caller);
        /* After a mismatch until the scheduler answers: this process may end at once, and its exit
         * code must not be the first that the launcher hears. */
        bool answer = status == WEFT_E_MISMATCH;
        int64_t until = wefti_now_ns() + second_ns;
        while (m->giving_up && (answer || m->fail_word == WEFTI_WORD_DUE) && wefti_member_is_in(m))
            if (!wefti_caller_wait(&m->caller, until)) break;
    }
    pthread_mutex_unlock(&m->caller.lock);
}

void wefti_member_fail(wefti_member *m, weft_status status, int failed, const char *message) {
    /* FAIL with WEFT_E_MISMATCH means that calls were unlike. */
    fail(m, status == WEFT_E_MISMATCH ? WEFT_E_PEER : status, failed, message);
}

void wefti_member_found_mismatch(wefti_member *m, const char *message) {
    fail(m, WEFT_E_MISMATCH, WEFT_RANK_NONE, message);
}

weft_status wefti_member_close(wefti_member *m, const wefti_call_records *records) {
    weft_status status = WEFT_OK;
    if (!m) return status;
    pthread_mutex_lock(&m->caller.lock);
    m->records = records;
    m->leave_word = WEFTI_WORD_DUE;
    wefti_caller_ring(&m->caller);
    /* A peer that closes its connection without a LEAVE has died: wait a little longer for the
     * scheduler to say so. After FAIL it may first await another rank's word. */
    int64_t answer_ns = (WEFTI_WORD_SECONDS + 1) * second_ns;
    int64_t until = wefti_now_ns() + (m->giving_up ? answer_ns : m->leave_ns);
    while (wefti_member_is_in(m) &&
           wefti_now_ns() < until + (m->leave_word == WEFTI_WORD_SAID ? 0 : 2 * second_ns))
        (void)wefti_caller_wait(&m->caller, wefti_now_ns() + second_ns / 20);
    if (has_failed(m)) status = wefti_caller_reason(&m->caller);
    pthread_mutex_unlock(&m->caller.lock);
    end(m);
    return status;
}
