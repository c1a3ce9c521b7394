/* Machine models: built-in files are valid and read back equal, strings give machines, and wrong
 * files are refused with file, line and key. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "topo/model.h"

static char *printed(const wefti_machine_model *m) {
    wefti_text text = {0};
    wefti_model_print(m, &text);
    char *out = wefti_text_take(&text);
    assert_non_null(out);
    return out;
}

static wefti_machine_model *found(const char *text) {
    wefti_machine_model *m;
    ASSERT_OK(wefti_model_find(text, &m));
    return m;
}

static void files_read_back_equal(void **state) {
    (void)state;
    int count = 0;
    for (const wefti_model_file *f = wefti_model_files; f->name; f++, count++) {
        wefti_machine_model *m, *again;
        ASSERT_OK(wefti_model_parse(f->name, f->text, f->bytes, &m));
        assert_string_equal(m->name, f->name);
        assert_non_null(m->description);
        char *first = printed(m), *second;
        ASSERT_OK(wefti_model_parse("printed", first, (int64_t)strlen(first), &again));
        second = printed(again);
        assert_string_equal(first, second);
        assert_string_equal(first, f->text); /* the files have the printer's form */
        wefti_free(first);
        wefti_free(second);
        wefti_model_destroy(m);
        wefti_model_destroy(again);
    }
    assert_true(count >= 12);
}

static void usual_machines_are_built_in(void **state) {
    (void)state;
    static const char *const names[] = {
        "v100",        "a100-40g",      "a100-80g",     "h100-80g", "h200",
        "b200",        "v100-16g",      "h100-96g",     "gh200",    "b300",
        "gb300",       "tpu-v4",        "tpu-v5e",      "tpu-v5p",  "rtx-3090",
        "l4",          "a100-jean-zay", "gb200",        "mi300x",   "ascend-910a",
        "ascend-910b", "cpu-xeon-8480", "cpu-epyc-9654"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        wefti_machine_model *m = found(names[i]);
        assert_int_equal(m->hosts, 0);
        ASSERT_OK(wefti_model_fits(m, 1024));
        wefti_machine rates = wefti_model_rates(m);
        assert_true(rates.product_bf16 > 0 && rates.bytes_per_second > 0);
        wefti_model_destroy(m);
    }
}

static void counts_set_hosts_and_devices(void **state) {
    (void)state;
    wefti_machine_model *m = found("8 hosts of 8 h100-80g");
    assert_int_equal(m->hosts, 8);
    assert_int_equal(wefti_model_per_host(m), 8);
    ASSERT_OK(wefti_model_fits(m, 64));
    ASSERT_FAILS(WEFT_E_ARG, "h100-80g|64|65", wefti_model_fits(m, 65));
    assert_int_equal(wefti_model_level_of(m, 8, 15), 0);
    assert_int_equal(wefti_model_level_of(m, 7, 8), 1);
    wefti_model_destroy(m);
    m = found("2 h100-80g");
    assert_int_equal(m->hosts, 1);
    assert_int_equal(wefti_model_per_host(m), 2);
    wefti_model_destroy(m);
    m = found("36 hosts of 4 gb200"); /* racks of 18 hosts */
    assert_int_equal(wefti_model_level_of(m, 0, 3), 0);
    assert_int_equal(wefti_model_level_of(m, 0, 71), 1);
    assert_int_equal(wefti_model_level_of(m, 71, 72), 2);
    wefti_links links = wefti_model_links(m);
    assert_int_equal(links.ranks_per_host, 72); /* the NVLink domain counts as a host */
    wefti_model_destroy(m);
    m = found("1 host of 2 ascend-910a"); /* groups of 4 end with 2 devices */
    assert_int_equal(m->level_count, 2);
    wefti_model_destroy(m);
    ASSERT_FAILS(WEFT_E_ARG, "h100-80g|8|16", wefti_model_find("2 hosts of 16 h100-80g", &m));
    ASSERT_FAILS(WEFT_E_ARG, "eight hosts", wefti_model_find("eight hosts of 8 h100-80g", &m));
    ASSERT_FAILS(WEFT_E_ARG, "0 hosts", wefti_model_find("0 hosts of 8 h100-80g", &m));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "h100-80", wefti_model_find("8 hosts of 8 h100-80", &m));
    ASSERT_MESSAGE("h100-80g");
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "'h100'|h100-80g", wefti_model_find("8 hosts of 8 h100", &m));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "'zx81'|machine list", wefti_model_find("zx81", &m));
    ASSERT_FAILS(WEFT_E_ARG, "empty", wefti_model_find("  ", &m));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "no/such.json", wefti_model_find("no/such.json", &m));
}

/* Devices of a host, and hosts, that share processors. */
static void processors_are_shared(void **state) {
    (void)state;
    wefti_machine_model *m = found("2 hosts of 2 h100-80g");
    assert_true(wefti_model_sharing(m, 4) == 1);
    for (int32_t r = 0; r < 4; r++) assert_int_equal(wefti_model_processor(m, r), r);
    m->device.hosts_at_once = (wefti_figure){1, "t"};
    assert_true(wefti_model_sharing(m, 4) == 2);
    assert_true(wefti_model_sharing(m, 2) == 1); /* one host */
    for (int32_t r = 0; r < 4; r++) assert_int_equal(wefti_model_processor(m, r), r % 2);
    m->device.devices_at_once = (wefti_figure){1, "t"};
    assert_true(wefti_model_sharing(m, 4) == 4);
    for (int32_t r = 0; r < 4; r++) assert_int_equal(wefti_model_processor(m, r), 0);
    m->device.hosts_at_once.source = NULL;
    assert_true(wefti_model_sharing(m, 4) == 2);
    for (int32_t r = 0; r < 4; r++) assert_int_equal(wefti_model_processor(m, r), r / 2 * 2);
    wefti_model_destroy(m);
}

static void topologies_set_links(void **state) {
    (void)state;
    wefti_machine_model *m = found("hosts=8 gpus=8 gpu=h100-80g intra=450e9,3e-6 inter=50e9,8e-6");
    assert_int_equal(m->hosts, 8);
    assert_int_equal(m->level_count, 2);
    assert_true(m->level[0].bytes_per_second.value == 450e9);
    assert_true(m->level[1].latency_seconds.value == 8e-6);
    assert_string_equal(m->level[1].bytes_per_second.source, "given: inter=50e9,8e-6");
    wefti_links links = wefti_model_links(m);
    assert_true(links.measured && links.ranks_per_host == 8);
    assert_true(links.between_hosts.latency_seconds == 8e-6);
    assert_true(fabs(links.between_hosts.bytes_per_second / 50e9 - 1) < 1e-12);
    wefti_model_destroy(m);
    m = found("gpus=64 gpu=a100-80g intra=1e9,0"); /* a host that nobody sells */
    assert_int_equal(wefti_model_per_host(m), 64);
    wefti_model_destroy(m);
    ASSERT_FAILS(WEFT_E_ARG, "gpu", wefti_model_find("hosts=8 gpus=8", &m));
    ASSERT_FAILS(WEFT_E_ARG, "host|hosts", wefti_model_find("host=8 gpu=v100", &m));
    ASSERT_FAILS(WEFT_E_ARG, "hosts=0", wefti_model_find("hosts=0 gpu=v100", &m));
    ASSERT_FAILS(WEFT_E_ARG, "hosts=-1", wefti_model_find("hosts=-1 gpu=v100", &m));
    ASSERT_FAILS(WEFT_E_ARG, "intra=5e9", wefti_model_find("gpu=v100 intra=5e9", &m));
    ASSERT_FAILS(WEFT_E_ARG, "inter=-5,1", wefti_model_find("gpu=v100 inter=-5,1", &m));
    ASSERT_FAILS(WEFT_E_ARG, "inter=5e9,nan", wefti_model_find("gpu=v100 inter=5e9,nan", &m));
    ASSERT_FAILS(WEFT_E_ARG, "gpu|twice", wefti_model_find("gpu=v100 gpu=v100", &m));
    ASSERT_FAILS(WEFT_E_ARG, "hosts", wefti_model_find("gpu=v100 hosts=1048576 gpus=8", &m));
}

/* A latency of -0 is 0: the printed machine reads back equal. */
static void zeros_have_no_sign(void **state) {
    (void)state;
    wefti_machine_model *m = found("gpus=2 gpu=v100 intra=5e9,-0"), *again;
    assert_false(signbit(m->level[0].latency_seconds.value));
    char *text = printed(m);
    ASSERT_OK(wefti_model_parse("m.json", text, (int64_t)strlen(text), &again));
    char *second = printed(again);
    assert_string_equal(text, second);
    wefti_free(text);
    wefti_free(second);
    wefti_model_destroy(m);
    wefti_model_destroy(again);
}

static void uplinks_are_shared(void **state) {
    (void)state;
    wefti_machine_model *m = found("2 hosts of 8 v100"); /* 8 devices share 50 GB/s */
    assert_true(fabs(wefti_model_byte_seconds(m, 1, 1) * 12.5e9 - 1) < 1e-12);
    assert_true(fabs(wefti_model_byte_seconds(m, 1, 4) * 12.5e9 - 1) < 1e-12);
    assert_true(fabs(wefti_model_byte_seconds(m, 1, 8) * 6.25e9 - 1) < 1e-12);
    wefti_model_destroy(m);
}

static void curves_are_logarithmic(void **state) {
    (void)state;
    const double work[] = {1, 100, 10000}, rate[] = {10, 1000, 4000};
    const wefti_curve c = {"measured", work, rate, 3};
    assert_true(wefti_curve_rate(&c, 0.5) == 10);
    assert_true(wefti_curve_rate(&c, 1e9) == 4000);
    assert_true(fabs(wefti_curve_rate(&c, 10) - 100) < 1e-9);
    assert_true(fabs(wefti_curve_rate(&c, 1000) - 2000) < 1e-9);
    assert_true(wefti_curve_rate(&c, 100) == 1000);
}

/* ---- wrong files ---- */

static const char good[] =
    "{\"version\": 1,\n \"name\": \"tiny\",\n \"hosts\": 2,\n \"device\": {\n"
    "  \"memory_bytes\": {\"value\": 1e9, \"source\": \"s\"},\n"
    "  \"memory_bytes_per_second\": {\"value\": 1e9, \"source\": \"s\"},\n"
    "  \"vector_flops\": {\"value\": 1e9, \"source\": \"s\"},\n"
    "  \"launch_seconds\": {\"value\": 0, \"source\": \"s\"},\n"
    "  \"peak_flops\": {\"f32\": {\"value\": 1e9, \"source\": \"s\"}},\n"
    "  \"memory_curve\": {\"source\": \"s\", \"points\": [[1, 2],\n[3, 4]]}},\n"
    " \"levels\": [\n"
    "  {\"name\": \"host\", \"devices\": 4, \"latency_seconds\": {\"value\": 0, \"source\": "
    "\"s\"}, "
    "\"bytes_per_second\": {\"value\": 5e9, \"source\": \"s\"}},\n"
    "  {\"name\": \"far\", \"latency_seconds\": {\"value\": 7, \"source\": \"s\"}, "
    "\"bytes_per_second\": {\"value\": 5, \"source\": \"s\"}}]}";

static void refused(const char *part, const char *by, weft_status status, const char *facts) {
    char text[4096];
    const char *at = strstr(good, part);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, by, at + strlen(part));
    wefti_machine_model *m = NULL;
    ASSERT_FAILS(status, facts, wefti_model_parse("m.json", text, (int64_t)strlen(text), &m));
    assert_memory_equal(weft_error_message(), "m.json", 6);
    assert_null(m);
}

/* "this-machine" is a measured file, named by the environment. */
static void this_machine_is_a_file(void **state) {
    (void)state;
    wefti_machine_model *m;
    char *path, file[] = "/tmp/weft-this-machine-XXXXXX";
    const int fd = mkstemp(file);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(setenv("WEFT_THIS_MACHINE", file, 1), 0);
    ASSERT_OK(wefti_model_this_machine(&path));
    assert_string_equal(path, file);
    wefti_free(path);
    assert_true(wefti_model_find("this-machine", &m) < 0); /* an empty file */
    wefti_machine_model *other = found("8 h100-80g");
    char *text = printed(other);
    ASSERT_OK(wefti_file_write(file, text, strlen(text)));
    m = found("2 this-machine");
    assert_int_equal(wefti_model_per_host(m), 2);
    wefti_free(text);
    wefti_model_destroy(m);
    wefti_model_destroy(other);
    wefti_fault_arm(WEFTI_FAULT_IO, 0, true, 0); /* it may be there */
    assert_int_equal(wefti_model_find("this-machine", &m), WEFT_E_IO);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    (void)unlink(file);
    assert_int_equal(wefti_model_find("this-machine", &m), WEFT_E_NOT_FOUND);
    assert_non_null(strstr(weft_error_message(), "weft machine measure"));
    assert_int_equal(unsetenv("WEFT_THIS_MACHINE"), 0);
    assert_int_equal(setenv("XDG_CONFIG_HOME", "/config", 1), 0);
    ASSERT_OK(wefti_model_this_machine(&path));
    assert_string_equal(path, "/config/weft/this-machine.json");
    wefti_free(path);
    assert_int_equal(unsetenv("XDG_CONFIG_HOME"), 0);
    assert_int_equal(setenv("HOME", "", 1), 0);
    assert_int_equal(wefti_model_this_machine(&path), WEFT_E_NOT_FOUND);
}

/* Corrections of ops read back equal, and count by op, arithmetic and size. */
static void ops_have_factors(void **state) {
    (void)state;
    static const char part[] = "\"memory_curve\"";
    static const char factors[] =
        "\"step_seconds\": {\"value\": 0.5, \"source\": \"s\"}, \"op_factors\": {\"linear\": "
        "{\"source\": \"s\", \"points\": [[100, 2], [10000, 0.5]]}, \"linear.bf16\": {\"source\": "
        "\"s\", \"points\": [[7, 3]]}}, \"memory_curve\"";
    char text[4096];
    const char *at = strstr(good, part);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, factors, at + strlen(part));
    wefti_machine_model *m, *again;
    ASSERT_OK(wefti_model_parse("m.json", text, (int64_t)strlen(text), &m));
    char *first = printed(m);
    ASSERT_OK(wefti_model_parse("again", first, (int64_t)strlen(first), &again));
    char *second = printed(again);
    assert_string_equal(first, second);
    const wefti_device_model *d = &again->device;
    assert_true(d->step_seconds.value == 0.5);
    assert_int_equal(d->op_factor_count, 2);
    assert_true(wefti_model_op_factor(d, "linear", WEFTI_ARITHMETIC_F32, 100) == 2);
    assert_true(fabs(wefti_model_op_factor(d, "linear", WEFTI_ARITHMETIC_F32, 1000) - 1) < 1e-9);
    assert_true(wefti_model_op_factor(d, "linear", WEFTI_ARITHMETIC_F32, 1e9) == 0.5);
    assert_true(wefti_model_op_factor(d, "linear", WEFTI_ARITHMETIC_BF16, 1e9) == 3);
    assert_true(wefti_model_op_factor(d, "linear", WEFTI_ARITHMETIC_F64, 100) == 1);
    assert_true(wefti_model_op_factor(d, "line", WEFTI_ARITHMETIC_F32, 100) == 1);
    wefti_free(first);
    wefti_free(second);
    wefti_model_destroy(m);
    wefti_model_destroy(again);
    refused("\"memory_curve\"", "\"op_factors\": [], \"memory_curve\"", WEFT_E_ARG,
            "line 10|op_factors");
    refused("\"memory_curve\"", "\"op_factors\": {\"add\": 2}, \"memory_curve\"", WEFT_E_ARG,
            "line 10|op_factors.add");
    refused("\"memory_curve\"",
            "\"op_factors\": {\"add\": {\"source\": \"s\", \"points\": [[1, 0]]}}, "
            "\"memory_curve\"",
            WEFT_E_ARG, "line 10|points[0]");
}

/* Rates of tiers: curves read back equal, and a plain number holds for all sizes and ways. */
static void tiers_have_curves(void **state) {
    (void)state;
    static const char part[] = "\"memory_curve\"";
    static const char tiers[] =
        "\"host_bytes_per_second\": {\"value\": 5, \"source\": \"s\"}, \"disk_bytes_per_second\": "
        "{\"source\": \"t\", \"depth\": 8, \"spends_cores\": true, \"read\": [[4096, 1], [16384, "
        "4]], \"write\": [[4096, 7]], \"both\": [[4096, 3]]}, \"memory_curve\"";
    char text[4096];
    const char *at = strstr(good, part);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, tiers, at + strlen(part));
    wefti_machine_model *m, *again;
    ASSERT_OK(wefti_model_parse("m.json", text, (int64_t)strlen(text), &m));
    char *first = printed(m);
    ASSERT_OK(wefti_model_parse("again", first, (int64_t)strlen(first), &again));
    char *second = printed(again);
    assert_string_equal(first, second);
    const wefti_tier_rates *host = &again->device.host_bytes_per_second;
    const wefti_tier_rates *disk = &again->device.disk_bytes_per_second;
    for (int w = 0; w < WEFTI_TIER_WAYS; w++)
        assert_true(wefti_tier_rate(host, (wefti_tier_way)w, 1 << w) == 5);
    assert_false(host->spends_cores);
    assert_true(disk->spends_cores);
    assert_int_equal(disk->depth, 8);
    assert_string_equal(disk->source, "t");
    assert_true(fabs(wefti_tier_rate(disk, WEFTI_TIER_READ, 8192) - 2) < 1e-9);
    assert_true(wefti_tier_rate(disk, WEFTI_TIER_WRITE, 8192) == 7);
    assert_true(wefti_tier_rate(disk, WEFTI_TIER_BOTH, 8192) == 3);
    wefti_free(first);
    wefti_free(second);
    wefti_model_destroy(m);
    wefti_model_destroy(again);
    static const struct {
        const char *tier, *facts;
    } wrong[] = {{"5", "line 10|host_bytes_per_second"},
                 {"{\"value\": 0, \"source\": \"s\"}", "line 10|host_bytes_per_second.value"},
                 {"{\"source\": \"s\"}", "line 10|host_bytes_per_second.read"},
                 {"{\"source\": \"s\", \"read\": [[1, 1]], \"write\": [[1, 1]]}",
                  "host_bytes_per_second.both"},
                 {"{\"source\": \"s\", \"read\": [[1, 0]]}", "read[0]"},
                 {"{\"source\": \"s\", \"reads\": [[1, 1]]}", "'read'"},
                 {"{\"read\": [[1, 1]], \"write\": [[1, 1]], \"both\": [[1, 1]]}", "source"},
                 {"{\"source\": \"s\", \"depth\": 0}", "depth"},
                 {"{\"value\": 5, \"source\": \"s\", \"depth\": 8}",
                  "line 10|host_bytes_per_second|both 'value'|'depth'"},
                 {"{\"source\": \"s\", \"read\": [[1, 1]], \"value\": 5}",
                  "line 10|host_bytes_per_second|both 'value'|'read'"},
                 {"{\"value\": 5, \"source\": \"s\", \"dept\": 8}", "'dept'"},
                 {"{\"source\": \"s\", \"spends_cores\": 1}", "spends_cores"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, "\"host_bytes_per_second\": %s, \"memory_curve\"",
                 wrong[i].tier);
        refused("\"memory_curve\"", text, WEFT_E_ARG, wrong[i].facts);
    }
}

static void wrong_files_are_refused(void **state) {
    (void)state;
    wefti_machine_model *m;
    ASSERT_OK(wefti_model_parse("m.json", good, (int64_t)strlen(good), &m));
    wefti_model_destroy(m);
    refused("\"version\": 1", "\"version\": 2", WEFT_E_ARG, "line 1|version|2");
    refused("\"hosts\"", "\"host\"", WEFT_E_ARG, "line 3|'host'|'hosts'");
    refused("\"hosts\": 2", "\"hosts\": -2", WEFT_E_ARG, "line 3|hosts");
    refused("\"value\": 1e9", "\"value\": -1e9", WEFT_E_ARG, "line 5|device.memory_bytes|-1e+09");
    refused("\"value\": 1e9", "\"value\": 1e999", WEFT_E_CORRUPT, "m.json");
    refused("\"value\": 1e9, \"source\": \"s\"", "\"value\": 1e9", WEFT_E_ARG,
            "line 5|memory_bytes.source");
    refused("\"value\": 1e9, ", "", WEFT_E_ARG, "line 5|memory_bytes.value");
    refused("\"vector_flops\"", "\"vector_flop\"", WEFT_E_ARG, "line 7|device|'vector_flops'");
    refused("  \"launch_seconds\": {\"value\": 0, \"source\": \"s\"},\n", "", WEFT_E_ARG,
            "device.launch_seconds");
    refused("\"f32\"", "\"f31\"", WEFT_E_ARG, "line 9|peak_flops|'f32'");
    refused("{\"f32\": {\"value\": 1e9, \"source\": \"s\"}}", "{}", WEFT_E_ARG, "peak_flops|bf16");
    refused("[3, 4]", "[1, 4]", WEFT_E_ARG, "line 11|points[1]");
    refused("[3, 4]", "[3]", WEFT_E_ARG, "line 11|points[1]");
    refused("\"devices\": 4", "\"devices\": 4, \"hosts\": 2", WEFT_E_ARG, "'host'");
    refused("\"devices\": 4, ", "", WEFT_E_ARG, "'host'|`devices`");
    refused("\"name\": \"far\"", "\"name\": \"far\", \"devices\": 6", WEFT_E_ARG, "'far'|6|4");
    refused("\"name\": \"far\"", "\"name\": \"far\", \"hosts\": 1", WEFT_E_ARG, "2 hosts|'far'");
    refused("\"value\": 7", "\"value\": 700", WEFT_E_ARG, "line 14|levels[1].latency_seconds|700");
    refused("\"value\": 5,", "\"value\": \"5\",", WEFT_E_ARG, "line 14|bytes_per_second.value");
    refused("}]}", "}]", WEFT_E_CORRUPT, "line 14");
}

static void allocations_may_fail(void **state) {
    (void)state;
    weft_status status = WEFT_E_NOMEM;
    for (int n = 0; status == WEFT_E_NOMEM; n++) {
        wefti_machine_model *m = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        status = wefti_model_find("hosts=2 gpus=4 gpu=h100-80g inter=5e9,1e-6", &m);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (status >= 0) wefti_model_destroy(m);
        assert_true(status == WEFT_OK || status == WEFT_E_NOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_read_back_equal),
        cmocka_unit_test(usual_machines_are_built_in),
        cmocka_unit_test(counts_set_hosts_and_devices),
        cmocka_unit_test(processors_are_shared),
        cmocka_unit_test(topologies_set_links),
        cmocka_unit_test(zeros_have_no_sign),
        cmocka_unit_test(uplinks_are_shared),
        cmocka_unit_test(curves_are_logarithmic),
        cmocka_unit_test(this_machine_is_a_file),
        cmocka_unit_test(ops_have_factors),
        cmocka_unit_test(tiers_have_curves),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
