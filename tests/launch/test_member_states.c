/* The protocols of the control plane's connections: every event in every state leads where the
 * table of docs/design/launch.md says, and nowhere else. */
#include "support.h"

#include <sys/socket.h>

#include "control_cases.h"
#include "launch/member/state.h"

enum { STATES_MOST = 8, EVENTS_MOST = 40 };

typedef struct explored {
    const char *name; /* of the protocol, as the table has it */
    wefti_caller *caller;
    char next[STATES_MOST][EVENTS_MOST][32]; /* as the table has it; "": no change */
    bool described[STATES_MOST];
} explored;

/* --- events --- */

enum { ASKED = WEFTI_FRAME_KINDS, LOST, RANK_LOST, NOBODY_LISTENS, LATE, EVENTS };
_Static_assert((int)EVENTS <= (int)EVENTS_MOST, "all events have a place");

static const char *event_name(int event) {
#define FRAME_NAME(name, from_scheduler, limit) [WEFTI_FRAME_##name] = #name,
    static const char *const names[EVENTS] = {
        WEFTI_FRAME_LIST(FRAME_NAME)[ASKED] = "asked", [LOST] = "lost",
        [RANK_LOST] = "lost with its rank", [NOBODY_LISTENS] = "nobody listens", [LATE] = "late"};
#undef FRAME_NAME
    return names[event] ? names[event] : "";
}

static bool comes_from_scheduler(int kind) {
#define FRAME_SIDE(name, from_scheduler, limit) [WEFTI_FRAME_##name] = from_scheduler,
    static const bool sides[WEFTI_FRAME_KINDS] = {WEFTI_FRAME_LIST(FRAME_SIDE)};
#undef FRAME_SIDE
    return sides[kind];
}

static weft_status hear(wefti_caller *c, wefti_frame_kind kind) {
    unsigned char body[WEFTI_MESSAGE_MAX], *world = NULL;
    wefti_frame frame = {.kind = kind, .body = body};
    const wefti_seated seats[2] = {{0, 0}, {0, 1}};
    const wefti_world_message place = {.generation = 5,
                                       .rank = 1,
                                       .size = 2,
                                       .first_size = 2,
                                       .numbers = 2,
                                       .whole = 5,
                                       .hosted_by = -1,
                                       .heartbeat_ns = 1000000000};
    const wefti_end end = {.rank = 0, .code = 3, .text = "rank 0 ended"};
    if (kind == WEFTI_FRAME_ABORT || kind == WEFTI_FRAME_REFUSED)
        frame.bytes = wefti_abort_reason_encode(WEFT_E_PEER, 0, "rank 0 died", body);
    if (kind == WEFTI_FRAME_STATE) {
        static const wefti_job_health job = {.size = 2};
        assert_int_equal(wefti_health_encode(&job, NULL, &world, &frame.bytes), WEFT_OK);
        frame.body = world;
    }
    if (kind == WEFTI_FRAME_OVER) frame.bytes = wefti_end_encode(&end, body);
    if (kind == WEFTI_FRAME_ENTRIES) {
        wefti_entry_head(1, 0, body);
        frame.bytes = WEFTI_ENTRY_HEAD;
    }
    if (kind == WEFTI_FRAME_WORLD) {
        assert_int_equal(wefti_world_message_encode(&place, seats, &world, &frame.bytes), WEFT_OK);
        frame.body = world;
    }
    weft_status status = wefti_caller_hear(c, &frame);
    wefti_free(world);
    return status;
}

static void happen(explored *e, int event) {
    wefti_caller *c = e->caller;
    const wefti_protocol_state *row = wefti_caller_row(c);
    wefti_member *m = c->protocol == &wefti_protocol_member ? (wefti_member *)c : NULL;
    if (m) {
        wefti_free(m->host);
        m->host = NULL;
        m->placed = (wefti_world_message){
            .generation = 5, .rank = 1, .size = 2, .hosted_by = event == RANK_LOST ? 0 : -1};
    }
    if (event == ASKED && row->ask) assert_int_equal(row->ask(c), WEFT_OK);
    if ((event == LOST || (event == RANK_LOST && m)) && row->lose) row->lose(c);
    if (event == NOBODY_LISTENS && row->gone) row->gone(c);
    if (event == LATE && row->calls && !row->silent)
        wefti_caller_fail(c, WEFT_E_TIMEOUT, WEFT_RANK_OWN, "the time is up");
    if (event >= WEFTI_FRAME_KINDS || !comes_from_scheduler(event)) return;
    int before = c->state;
    weft_status status = hear(c, (wefti_frame_kind)event);
    if (status >= 0) return;
    if (status != WEFT_E_CORRUPT || c->state != before || row->deaf)
        fail_msg("%s %s, %s: status %d, then %s", e->name, row->name, event_name(event),
                 (int)status, wefti_caller_row(c)->name);
}

/* --- the table --- */

static int find_state(const explored *e, const char *name, size_t length) {
    const wefti_protocol *p = e->caller->protocol;
    for (int s = 0; s < p->count; s++)
        if (strlen(p->states[s].name) == length && !memcmp(p->states[s].name, name, length))
            return s;
    fail_msg("%s has no state '%.*s'", e->name, (int)length, name);
    return -1;
}

static int find_event(const char *name, size_t length) {
    for (int event = 1; event < EVENTS; event++)
        if (strlen(event_name(event)) == length && !memcmp(event_name(event), name, length))
            return event;
    fail_msg("no event '%.*s'", (int)length, name);
    return -1;
}

/* "ABORT, late: `FAILED`; lost: `LOST`" */
static void read_moves(explored *e, int state, char *text) {
    for (char *save, *move = strtok_r(text, ";", &save); move; move = strtok_r(NULL, ";", &save)) {
        char *colon = strchr(move, ':'), *next = colon ? strchr(colon, '`') : NULL;
        if (!next) continue; /* "-" */
        size_t length = strcspn(++next, "`");
        const char *name = e->caller->protocol->states[find_state(e, next, length)].name;
        *colon = '\0';
        for (char *end, *event = strtok_r(move, ",", &end); event;
             event = strtok_r(NULL, ",", &end)) {
            event += strspn(event, " ");
            size_t bytes = strlen(event);
            while (bytes && event[bytes - 1] == ' ') bytes--;
            snprintf(e->next[state][find_event(event, bytes)], 32, "%s", name);
        }
    }
}

/* Rows "| PROTOCOL | `STATE` | meaning | moves |". */
static void read_table(explored *e) {
    char line[1024], start[64];
    FILE *f = fopen("docs/design/launch.md", "r");
    assert_non_null(f);
    snprintf(start, sizeof start, "  | %s | `", e->name);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, start, strlen(start)) != 0) continue;
        char *name = line + strlen(start), *moves = name;
        for (int bar = 0; bar < 2 && moves; bar++) moves = strchr(moves + 1, '|');
        assert_non_null(moves);
        int state = find_state(e, name, strcspn(name, "`"));
        assert_false(e->described[state]);
        e->described[state] = true;
        moves[1 + strcspn(moves + 1, "|")] = '\0';
        read_moves(e, state, moves + 1);
    }
    fclose(f);
}

/* --- exploring --- */

static void explore(explored *e) {
    wefti_caller *c = e->caller;
    const wefti_protocol *p = c->protocol;
    bool reached[STATES_MOST] = {true};
    assert_in_range(p->count, 1, STATES_MOST);
    read_table(e);
    for (int s = 0; s < p->count; s++) {
        if (!e->described[s]) fail_msg("no row for %s %s", e->name, p->states[s].name);
        for (int event = 1; event < EVENTS; event++) {
            c->state = s;
            happen(e, event);
            const char *wanted = *e->next[s][event] ? e->next[s][event] : p->states[s].name;
            if (strcmp(wanted, wefti_caller_row(c)->name) != 0)
                fail_msg("%s %s, %s: %s, not %s", e->name, p->states[s].name, event_name(event),
                         wefti_caller_row(c)->name, wanted);
            reached[c->state] = true;
        }
    }
    for (int s = 0; s < p->count; s++)
        if (!reached[s]) fail_msg("no event leads to %s %s", e->name, p->states[s].name);
}

/* A connection whose other side reads nothing. */
static void connect_caller(wefti_caller *c, int ends[2]) {
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    wefti_wire_close(&c->link);
    c->link = (wefti_wire){.fd = ends[0], .phase = WEFTI_WIRE_OPEN};
    c->connection = WEFTI_LINE_OFF;
}

static void disconnect_caller(wefti_caller *c, int ends[2]) {
    wefti_wire_close(&c->link);
    close(ends[1]);
    c->state = c->protocol->failed;
}

static void member_states(void **state) {
    (void)state;
    int ends[2];
    wefti_member *m = wefti_calloc(1, sizeof *m);
    assert_non_null(m);
    m->caller = (wefti_caller){.protocol = &wefti_protocol_member, .link = {.fd = -1}};
    pthread_mutex_init(&m->caller.lock, NULL);
    pthread_cond_init(&m->caller.changed, NULL);
    connect_caller(&m->caller, ends);
    pthread_mutex_lock(&m->caller.lock);
    explore(&(explored){.name = "member", .caller = &m->caller});
    disconnect_caller(&m->caller, ends);
    pthread_mutex_unlock(&m->caller.lock);
    pthread_mutex_destroy(&m->caller.lock);
    pthread_cond_destroy(&m->caller.changed);
    wefti_free(m->host);
    wefti_member_forget_worlds(m);
    wefti_free(m);
}

/* The thread of the connection waits for the lock meanwhile. */
static void explore_running(wefti_caller *c, const char *name) {
    int ends[2];
    pthread_mutex_lock(&c->lock);
    connect_caller(c, ends);
    explore(&(explored){.name = name, .caller = c});
    disconnect_caller(c, ends);
    pthread_mutex_unlock(&c->lock);
}

static void report_states(void **state) {
    (void)state;
    wefti_report *report;
    wefti_member_options o = test_member("127.0.0.1:1");
    const wefti_end end = {.rank = 1, .code = 3, .text = "rank 1 ended"};
    assert_int_equal(wefti_report_begin(&o, &end, &report), WEFT_OK);
    explore_running((wefti_caller *)report, "report");
    assert_false(wefti_report_is_under_way(report));
    wefti_report_end(report, 1e-9, true);
}

static void watch_states(void **state) {
    (void)state;
    wefti_watch *watch;
    wefti_end end;
    wefti_member_options o = test_member("127.0.0.1:1");
    assert_int_equal(wefti_watch_begin(&o, &(wefti_span){1, 1}, &watch), WEFT_OK);
    explore_running((wefti_caller *)watch, "watch");
    assert_true(wefti_watch_has_found(watch));
    assert_false(wefti_watch_is_seeking(watch) || wefti_watch_is_over(watch, &end));
    wefti_watch_end(watch);
}

static void question_states(void **state) {
    (void)state;
    struct {
        wefti_caller caller;
        wefti_job_health health;
        wefti_rank_health *rank;
    } *question = wefti_calloc(1, sizeof *question);
    wefti_member_options o = test_member("127.0.0.1:1");
    assert_non_null(question);
    assert_int_equal(wefti_caller_begin(&question->caller, &wefti_protocol_question, &o), WEFT_OK);
    explore_running(&question->caller, "question");
    wefti_caller_end(&question->caller);
    wefti_free(question);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(member_states),
        cmocka_unit_test(report_states),
        cmocka_unit_test(watch_states),
        cmocka_unit_test(question_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
