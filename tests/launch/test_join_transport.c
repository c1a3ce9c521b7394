/* A world over a transport of the caller. */
#include "join_cases.h"

#include "no_messages.h"

/* --- a transport: pipes through shared memory are enough for its cards */

typedef struct board { /* exchange without messages: everyone writes, then reads */
    _Atomic int arrived;
    unsigned char cards[RANKS][4096];
} board;
enum { ROUNDS = 16 };
static board *boards;

typedef struct pigeon {
    int rank, round, closed;
} pigeon;

static weft_status pigeon_exchange(void *context, const void *mine, size_t bytes, void *all) {
    pigeon *p = context;
    board *b = &boards[p->round++];
    if (bytes > sizeof b->cards[0] || p->round >= ROUNDS) return WEFT_E_ARG;
    memcpy(b->cards[p->rank], mine, bytes);
    b->arrived++;
    while (b->arrived < RANKS) usleep(100);
    for (int r = 0; r < RANKS; r++)
        memcpy((unsigned char *)all + bytes * (size_t)r, b->cards[r], bytes);
    return WEFT_OK;
}
static void pigeon_close(void *c) {
    ((pigeon *)c)->closed++;
}

static weft_transport transport_of(pigeon *p, int size) {
    weft_transport t = no_messages("pigeons", p->rank, size);
    t.context = p;
    t.exchange = pigeon_exchange;
    t.close = pigeon_close;
    return t;
}

static int over_transport(int number, outcome *out) {
    pigeon p = {.rank = number};
    weft_transport t = transport_of(&p, RANKS);
    weft_world *w;
    weft_world_options options =
        WEFT_STRUCT(weft_world_options, .join_seconds = 600, .heartbeat_seconds = LONG_HEARTBEAT);
    weft_status status = weft_world_from_transport(&t, &options, &w);
    int bad = status < 0 ? describe(out, status) : use_world(w, out);
    return bad || p.closed != 1;
}

static void from_transport(void **state) {
    (void)state;
    boards = mmap(NULL, ROUNDS * sizeof *boards, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                  -1, 0);
    assert_true(boards != MAP_FAILED);
    begin(RANKS, over_transport);
    all_worked(RANKS, "host");
    munmap(boards, ROUNDS * sizeof *boards);
}

/* What users set counts there too. */
static void transport_heeds_settings(void **state) {
    (void)state;
    pigeon p = {0};
    weft_transport t = transport_of(&p, 1);
    weft_world *w = NULL;
    setenv("WEFT_WAIT_SECONDS", "soon", 1);
    assert_int_equal(weft_world_from_transport(&t, NULL, &w), WEFT_E_ARG);
    assert_non_null(strstr(weft_error_message(), "WEFT_WAIT_SECONDS is 'soon'"));
    assert_int_equal(p.closed, 1);
    unsetenv("WEFT_WAIT_SECONDS");
}

static int make_folder(void **state) {
    (void)state;
    return make_join_folder("join-transport");
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_transport),
        cmocka_unit_test(transport_heeds_settings),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
