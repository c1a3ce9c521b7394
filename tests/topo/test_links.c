/* Measured links: a written measurement reads back equal, and an invalid one is refused with file
 * and key. The first ranks of hosts decide which link an axis of a mesh has. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/philox.h"
#include "layout/layout.h"
#include "plan/plan.h"
#include "topo/links.h"
#include "weft/bench.h"

static void good(weft_status status) {
    if (status < 0) fail_msg("refused: %s", weft_error_message());
}

static weft_status load(const char *path, wefti_links *out) {
    char *text;
    int64_t bytes;
    WEFT_TRY(wefti_file_read(path, 1 << 20, &text, &bytes));
    const weft_status status = wefti_links_parse(path, text, bytes, out);
    wefti_free(text);
    return status;
}

static const char two_hosts[] =
    "{\"version\": 1, \"communicator\": \"host+ucx\", \"ranks\": 8, \"hosts\": 2, \"links\": "
    "{\"same_host\": {\"latency_seconds\": 4e-07, \"bytes_per_second\": 1e+10}, "
    "\"between_hosts\": {\"latency_seconds\": 2e-05, \"bytes_per_second\": 1000000000}}}";

static void what_is_written_is_read(void **state) {
    (void)state;
    char path[] = "/tmp/weft_links.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    weft_bench bench = {.communicator = "host+ucx",
                        .ranks = 6,
                        .hosts = 2,
                        .same_host = {true, 4.25e-7, 12345678912.0},
                        .between_hosts = {true, 1.5e-5, 2.5e9}};
    wefti_links links;
    good(weft_bench_write_links(&bench, path));
    good(load(path, &links));
    assert_true(links.measured && !links.by_messages);
    assert_int_equal(links.ranks_per_host, 3);
    assert_true(links.same_host.latency_seconds == 4.25e-7);
    assert_true(links.between_hosts.latency_seconds == 1.5e-5);
    assert_true(links.between_hosts.bytes_per_second == 2.5e9);
    bench = (weft_bench){.communicator = "ucx", .ranks = 3, .hosts = 1};
    bench.same_host = (weft_bench_link){true, 1e-5, 3e9};
    good(weft_bench_write_links(&bench, path));
    good(load(path, &links));
    assert_true(links.by_messages && !wefti_link_known(&links.between_hosts));
    assert_int_equal(links.ranks_per_host, 0);
    bench = (weft_bench){.communicator = "none", .ranks = 1, .hosts = 1};
    good(weft_bench_write_links(&bench, path));
    assert_int_equal(load(path, &links), WEFT_E_ARG);
    ASSERT_MESSAGE("link|measured");
    unlink(path);
}

/* The whole name of the communicator counts, not its first letters. */
static void names_of_communicators(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool by_messages;
    } names[] = {{"local", false},        {"host", false},   {"host+ucx", false},
                 {"host+mpi", false},     {"ucx", true},     {"mpi", true},
                 {"mac", true},           {"hostile", true}, {"hos", true},
                 {"localhost+ucx", true}, {"", true}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[512];
        wefti_links links;
        snprintf(text, sizeof text,
                 "{\"version\": 1, \"communicator\": \"%s\", \"ranks\": 2, \"hosts\": 1, "
                 "\"links\": {\"same_host\": {\"latency_seconds\": 4e-07, "
                 "\"bytes_per_second\": 1e+10}, \"between_hosts\": null}}",
                 names[i].name);
        good(wefti_links_parse("links.json", text, (int64_t)strlen(text), &links));
        if (links.by_messages != names[i].by_messages) fail_msg("communicator '%s'", names[i].name);
    }
}

static void refused(const char *text, weft_status status, const char *message) {
    wefti_links links = {.ranks_per_host = 77};
    assert_int_equal(wefti_links_parse("links.json", text, (int64_t)strlen(text), &links), status);
    assert_int_equal(links.ranks_per_host, 77);
    assert_memory_equal(weft_error_message(), "links.json: ", 12);
    if (!has_facts(weft_error_message(), message))
        fail_msg("'%s' is not in: %s", message, weft_error_message());
}

/* The good text with one part replaced. */
static void refused_with(const char *part, const char *by, weft_status status,
                         const char *message) {
    char text[1024];
    const char *at = strstr(two_hosts, part);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - two_hosts), two_hosts, by,
             at + strlen(part));
    refused(text, status, message);
}

static void bad_files_are_refused(void **state) {
    (void)state;
    wefti_links links;
    good(wefti_links_parse("links.json", two_hosts, (int64_t)strlen(two_hosts), &links));
    assert_int_equal(links.ranks_per_host, 4);
    refused("[1]", WEFT_E_ARG, "measured|links");
    refused("{}", WEFT_E_ARG, "measured|links");
    refused_with("\"version\": 1", "\"version\": 2", WEFT_E_ARG, "2|version 1");
    refused_with("\"version\": 1", "\"version\": \"1\"", WEFT_E_ARG, "version|whole");
    refused_with("\"ranks\": 8", "\"ranks\": 0", WEFT_E_ARG, "1");
    refused_with("\"hosts\": 2", "\"hosts\": 9", WEFT_E_ARG, "1|8");
    refused_with("\"communicator\": \"host+ucx\", ", "", WEFT_E_CORRUPT, "\"communicator\"");
    refused_with("\"links\"", "\"link\"", WEFT_E_CORRUPT, "\"links\" is missing");
    refused_with("\"same_host\"", "\"samehost\"", WEFT_E_ARG, "links: same_host is missing");
    refused_with("4e-07", "-4e-07", WEFT_E_ARG, "same_host|latency_seconds|-4e-07");
    refused_with("1e+10", "0", WEFT_E_ARG, "links: same_host: bytes_per_second is 0");
    refused_with("1000000000", "true", WEFT_E_ARG, "between_hosts|bytes_per_second");
    refused_with("\"latency_seconds\": 2e-05, ", "", WEFT_E_ARG,
                 "links: between_hosts: latency_seconds is missing");
    refused_with("{\"latency_seconds\": 2e-05, \"bytes_per_second\": 1000000000}", "null",
                 WEFT_E_ARG, "between_hosts|2");
    refused_with("{\"latency_seconds\": 2e-05, \"bytes_per_second\": 1000000000}", "[2]",
                 WEFT_E_ARG, "between_hosts");
    refused_with("8, ", "8,, ", WEFT_E_CORRUPT, "line 1");
    char text[sizeof two_hosts + 32];
    for (size_t n = 0; n + 1 < sizeof two_hosts; n++) { /* cut short anywhere */
        snprintf(text, sizeof text, "%.*s", (int)n, two_hosts);
        refused(text, WEFT_E_CORRUPT, "");
    }
    /* Unknown keys are ignored. */
    snprintf(text, sizeof text, "{\"more\": [1, {}], %s", two_hosts + 1);
    good(wefti_links_parse("links.json", text, (int64_t)strlen(text), &links));
}

static void no_memory(void **state) {
    (void)state;
    weft_status status = WEFT_E_NOMEM;
    int64_t n = 0;
    for (; status != WEFT_OK; n++) {
        wefti_links links;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        status = wefti_links_parse("links.json", two_hosts, (int64_t)strlen(two_hosts), &links);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        assert_true(status == WEFT_OK || status == WEFT_E_NOMEM);
    }
    assert_true(n > 1);
}

/* --- axes --- */

/* Whether a group along an axis has members on two hosts, by going through all of them. */
static bool crosses(const wefti_mesh *mesh, int a, int32_t per_host) {
    int32_t group[512];
    for (int32_t r = 0; r < wefti_mesh_size(mesh); r++) {
        int32_t n = wefti_mesh_group(mesh, mesh->first + r, 1u << a, group);
        if (per_host > 0 && group[0] / per_host != group[n - 1] / per_host) return true;
    }
    return false;
}

static int pick(uint64_t seed, uint64_t *at, int from, int to) {
    return from + (int)(wefti_philox_u32(seed, 0, (*at)++) % (uint32_t)(to - from + 1));
}

static void axes_have_the_link_that_they_use(void **state) {
    (void)state;
    static const char *const names[] = {"a", "b", "c", "d"};
    int far = 0, near = 0;
    TEST_SEEDS(seed, 1, 400) {
        uint64_t at = 0;
        int axes = pick(seed, &at, 1, 4), sizes[4], devices = 1, stages = pick(seed, &at, 1, 3);
        for (int a = 0; a < axes; a++) devices *= sizes[a] = pick(seed, &at, 1, 4);
        weft_plan *plan;
        good(weft_plan_create(devices * stages, &plan));
        good(weft_plan_pipeline(plan, stages, stages, WEFT_PIPELINE_1F1B, 1));
        for (int a = 0; a < axes; a++) good(weft_plan_axis(plan, names[a], sizes[a]));
        good(wefti_links_parse("links.json", two_hosts, (int64_t)strlen(two_hosts), &plan->links));
        plan->links.ranks_per_host = pick(seed, &at, 0, 9);
        for (int32_t s = 0; s < stages; s++) {
            wefti_mesh mesh = wefti_plan_mesh(plan, s);
            for (int a = 0; a < axes; a++) {
                bool cut = false; /* in any stage: all of them decide alike */
                for (int32_t other = 0; other < stages; other++) {
                    wefti_mesh there = wefti_plan_mesh(plan, other);
                    cut = cut || crosses(&there, a, plan->links.ranks_per_host);
                }
                if (sizes[a] == 1) continue; /* nothing ever moves along it */
                if (cut)
                    far++;
                else
                    near++;
                if (mesh.axis[a].link.latency != (cut ? 2e-5 : 4e-7) ||
                    mesh.axis[a].link.seconds_per_byte != (cut ? 1e-9 : 1e-10))
                    fail_msg("seed %d: axis %d of stage %d has latency %g", (int)seed, a, (int)s,
                             mesh.axis[a].link.latency);
            }
        }
        weft_plan_destroy(plan);
    }
    assert_true(test_one_seed() || (far > 100 && near > 100));
}

/* A link that was not measured is taken to be like the other one. */
static void one_link_stands_for_both(void **state) {
    (void)state;
    wefti_links links = {.measured = true, .ranks_per_host = 1, .between_hosts = {1, 4}};
    assert_true(wefti_links_of_blocks(&links, 0, 4, 4).latency == 1);
    assert_true(wefti_links_of_blocks(&links, 0, 4, 1).latency == 1);
    links = (wefti_links){.measured = true, .same_host = {2, 4}};
    assert_true(wefti_links_of_blocks(&links, 0, 4, 4).latency == 2);
    assert_true(wefti_links_of_blocks(&links, 0, 4, 4).seconds_per_byte == 0.25);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(names_of_communicators),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(axes_have_the_link_that_they_use),
        cmocka_unit_test(one_link_stands_for_both),
    };
    return cmocka_run_group_tests_name("links", tests, NULL, NULL);
}
