/* Structures that callers fill in: the library takes those of older and of newer headers. */
#include "support.h"

#include <stddef.h>
#include <string.h>

#include "weft/ops.h"
#include "weft/search.h"
#include "weft/session.h"
#include "weft/transport.h"

static weft_graph *small_graph(void) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 2, (int64_t[]){2, 3}));
    weft_loss(g, weft_mse(g, x, weft_scale(g, x, 2)));
    return g;
}

/* As of a program that was compiled when the structure ended before `recovery`. What lies behind it
 * is no concern of the library's. */
static void smaller_ones_get_defaults(void **state) {
    (void)state;
    weft_graph *g = small_graph();
    weft_session *s;
    weft_session_options o = weft_session_defaults();
    assert_int_equal(o.struct_bytes, sizeof o);
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = 1;
    memset((char *)&o + offsetof(weft_session_options, world), 0xAB,
           sizeof o - offsetof(weft_session_options, world));
    o.struct_bytes = offsetof(weft_session_options, world);
    ASSERT_OK(weft_session_create(g, &o, &s));
    assert_int_equal(weft_session_devices(s), 1);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* A library fills no more than the program has room for. */
static void defaults_of_smaller_ones_end_there(void **state) {
    (void)state;
    weft_session_options o;
    weft_search_options search;
    memset(&o, 0xAB, sizeof o);
    memset(&search, 0xAB, sizeof search);
    const size_t has = offsetof(weft_session_options, seed);
    weft_session_fill_defaults(&o, has);
    assert_int_equal(o.struct_bytes, has);
    assert_int_equal(o.microbatches, 1);
    for (size_t at = has; at < sizeof o; at++)
        assert_int_equal(((const unsigned char *)&o)[at], 0xAB);
    weft_search_fill_defaults(&search, offsetof(weft_search_options, rules));
    assert_int_equal(search.search, WEFT_SEARCH_DYNAMIC);
    assert_int_equal(((const unsigned char *)&search)[offsetof(weft_search_options, rules)], 0xAB);
}

/* A newer program may have members that this library does not know, unless they say something. */
static void larger_ones_say_nothing_new(void **state) {
    (void)state;
    struct {
        weft_session_options o;
        int64_t later[2];
    } newer = {.o = weft_session_defaults()};
    weft_graph *g = small_graph();
    weft_session *s;
    newer.o.optimizer.kind = WEFT_NO_OPTIMIZER;
    newer.o.threads = 1;
    newer.o.struct_bytes = sizeof newer;
    ASSERT_OK(weft_session_create(g, &newer.o, &s));
    weft_session_destroy(s);
    newer.later[1] = 1;
    ASSERT_FAILS(WEFT_E_NO_IMPL, "weft_session_options|library",
                 weft_session_create(g, &newer.o, &s));
    weft_graph_destroy(g);
}

static void without_a_size_they_are_refused(void **state) {
    (void)state;
    weft_graph *g = small_graph();
    weft_session *s;
    weft_world *world;
    weft_session_options o = weft_session_defaults();
    weft_world_options w = weft_world_defaults();
    weft_transport t = weft_transport_defaults();
    const weft_session_save_options save = {.keep = 1};
    assert_int_equal(w.struct_bytes, sizeof w);
    assert_int_equal(t.struct_bytes, sizeof t);
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = 1;
    o.struct_bytes = 0;
    ASSERT_FAILS(WEFT_E_ARG, "weft_session_options.struct_bytes is 0|defaults",
                 weft_session_create(g, &o, &s));
    o.struct_bytes = sizeof o;
    ASSERT_OK(weft_session_create(g, &o, &s));
    ASSERT_FAILS(WEFT_E_ARG, "weft_session_save_options", weft_session_save(s, "nowhere", &save));
    weft_session_destroy(s);
    t.struct_bytes = 1 << 20;
    ASSERT_FAILS(WEFT_E_ARG, "weft_transport.struct_bytes is 1048576",
                 weft_world_from_transport(&t, &w, &world));
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smaller_ones_get_defaults),
        cmocka_unit_test(defaults_of_smaller_ones_end_there),
        cmocka_unit_test(larger_ones_say_nothing_new),
        cmocka_unit_test(without_a_size_they_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
