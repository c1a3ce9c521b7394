/* Machines by name, by count and by topology strings: see model.h. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "topo/model.h"

enum { WORDS_MAX = 16, TEXT_MAX = 1024 };

/* ---- names ---- */

static const char this_machine[] = "this-machine";

static size_t common(const char *a, const char *b) {
    size_t length = 0;
    while (a[length] && a[length] == b[length]) length++;
    return length;
}

/* The name that begins most like the word, as h100-80g for h100: too far for weft_nearest. */
static const char *begins_like(const char *word, const char *const *names) {
    const char *best = NULL;
    size_t most = strlen(word) * 2 / 3 > 2 ? strlen(word) * 2 / 3 : 2;
    for (; *names; names++) {
        if (common(word, *names) <= most) continue;
        most = common(word, *names);
        best = *names;
    }
    return best;
}

static weft_status unknown(const char *name) {
    const char *names[64];
    int count = 0;
    for (const wefti_model_file *f = wefti_model_files; f->name && count < 62; f++)
        names[count++] = f->name;
    names[count++] = this_machine;
    names[count] = NULL;
    const char *near = begins_like(name, names);
    if (!near) near = weft_nearest(name, names);
    if (near)
        WEFT_FAIL(WEFT_E_NOT_FOUND, "unknown machine '%.80s'; did you mean '%s'?", name, near);
    WEFT_FAIL(WEFT_E_NOT_FOUND,
              "unknown machine '%.80s': neither a file nor a built-in machine (`weft machine list` "
              "names these)",
              name);
}

static weft_status find_name(const char *name, wefti_machine_model **out) {
    for (const wefti_model_file *f = wefti_model_files; f->name; f++)
        if (!strcmp(f->name, name)) return wefti_model_parse(f->name, f->text, f->bytes, out);
    return unknown(name);
}

/* ---- measured links ---- */

/* Devices with the assumed rates, between which links were measured. */
static weft_status from_links(const wefti_links *links, wefti_machine_model **out) {
    static const char assumed[] = "assumed: rates of a server CPU of about ten cores",
                      measured[] = "measured (weft bench comm)";
    wefti_arena *arena;
    WEFT_TRY(wefti_arena_create(&arena));
    wefti_machine_model *m = wefti_arena_alloc(arena, sizeof *m);
    if (!m) {
        wefti_arena_destroy(arena);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a machine");
    }
    const wefti_machine *rates = &wefti_machine_assumed;
    *m = (wefti_machine_model){.arena = arena, .name = "measured-links"};
    m->device =
        (wefti_device_model){.memory_bytes = {64e9, "assumed: memory of such a server"},
                             .memory_bytes_per_second = {rates->bytes_per_second, assumed},
                             .vector_flops = {rates->vector_flops, assumed},
                             .launch_seconds = {rates->start_seconds, assumed},
                             .peak_flops[WEFTI_ARITHMETIC_F32] = {rates->product_f32, assumed},
                             .peak_flops[WEFTI_ARITHMETIC_BF16] = {rates->product_bf16, assumed}};
    const bool many = links->ranks_per_host > 0;
    const wefti_measured_link *near = &links->same_host, *far = &links->between_hosts;
    if (!wefti_link_known(near)) near = far;
    m->level_count = many ? 2 : 1;
    m->level[0] = (wefti_level){.name = "host",
                                .devices = many ? links->ranks_per_host : WEFTI_MODEL_DEVICES_MAX,
                                .latency_seconds = {near->latency_seconds, measured},
                                .bytes_per_second = {near->bytes_per_second, measured}};
    m->level[1] = (wefti_level){.name = "network",
                                .latency_seconds = {far->latency_seconds, measured},
                                .bytes_per_second = {far->bytes_per_second, measured}};
    if (!many) m->level[1] = (wefti_level){0};
    *out = m;
    return WEFT_OK;
}

static bool holds_links(const char *text) {
    return strstr(text, "\"links\"") && !strstr(text, "\"levels\"");
}

/* A file of a machine, or of measured links. */
static weft_status find_file(const char *path, wefti_machine_model **out) {
    char *text;
    int64_t bytes;
    wefti_links links;
    WEFT_TRY(wefti_file_read(path, WEFTI_MODEL_FILE_MAX, &text, &bytes));
    weft_status status;
    if (holds_links(text)) {
        status = wefti_links_parse(path, text, bytes, &links);
        if (status >= 0) status = from_links(&links, out);
    } else {
        status = wefti_model_parse(path, text, bytes, out);
    }
    wefti_free(text);
    return status;
}

/* ---- this machine ---- */

weft_status wefti_model_this_machine(char **out) {
    const char *file = getenv("WEFT_THIS_MACHINE"), *config = getenv("XDG_CONFIG_HOME"),
               *home = getenv("HOME");
    WEFT_REQUIRE((file && *file) || (config && *config) || (home && *home), WEFT_E_NOT_FOUND,
                 "this-machine has no place: set HOME, or WEFT_THIS_MACHINE to a file");
    *out = file && *file       ? wefti_format("%s", file)
           : config && *config ? wefti_format("%s/weft/this-machine.json", config)
                               : wefti_format("%s/.config/weft/this-machine.json", home);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a path");
    return WEFT_OK;
}

static weft_status find_this_machine(wefti_machine_model **out) {
    char *path;
    WEFT_TRY(wefti_model_this_machine(&path));
    weft_status status = wefti_is_missing(path)
                             ? WEFT_RAISE(WEFT_E_NOT_FOUND,
                                          "this-machine was not measured, there is no %s: run "
                                          "`weft machine measure` first",
                                          path)
                             : find_file(path, out);
    wefti_free(path);
    return status;
}

static weft_status find_one(const char *name, wefti_machine_model **out) {
    const size_t length = strlen(name);
    if (!strcmp(name, this_machine)) return find_this_machine(out);
    bool is_file = strchr(name, '/') || (length > 5 && !strcmp(name + length - 5, ".json"));
    return is_file ? find_file(name, out) : find_name(name, out);
}

/* ---- counts ---- */

/* `any`: more devices in a host than the machine's file has are possible. */
static weft_status set_counts(wefti_machine_model *m, int32_t hosts, int32_t per_host, bool any) {
    int32_t kept = 0, present = wefti_model_per_host(m);
    WEFT_REQUIRE(any || per_host <= present, WEFT_E_ARG,
                 "a host of %s has at most %d devices, but %d are asked for", m->name, present,
                 per_host);
    const int32_t host = m->host_level;
    for (int32_t i = 0; i < m->level_count; i++) {
        wefti_level level = m->level[i];
        if (i < host && (level.devices >= per_host || per_host % level.devices)) continue;
        if (i == host) {
            level.devices = per_host;
            m->host_level = kept;
        }
        m->level[kept++] = level;
    }
    m->level_count = kept;
    if (hosts) m->hosts = hosts;
    WEFT_TRY(wefti_model_check(m));
    return WEFT_OK;
}

static bool read_count(const char *word, int32_t *out) {
    char *end;
    if (!isdigit((unsigned char)*word)) return false;
    long value = strtol(word, &end, 10);
    if (*end || value < 1 || value > WEFTI_MODEL_DEVICES_MAX) return false;
    *out = (int32_t)value;
    return true;
}

/* "8 hosts of 8 h100-80g" or "8 h100-80g". */
static weft_status find_counted(char *const *word, int count, const char *text,
                                wefti_machine_model **out) {
    int32_t hosts = 1, per_host;
    int at = 0;
    bool spoken = count == 5 && read_count(word[0], &hosts) &&
                  (!strcmp(word[1], "hosts") || !strcmp(word[1], "host")) && !strcmp(word[2], "of");
    if (spoken) at = 3;
    WEFT_REQUIRE((spoken || count == 2) && read_count(word[at], &per_host), WEFT_E_ARG,
                 "machine '%.100s' is not understood; possible are a name, a file, \"8 hosts of 8 "
                 "h100-80g\", and \"hosts=8 gpus=8 gpu=h100-80g\"",
                 text);
    WEFT_TRY(find_one(word[at + 1], out));
    weft_status status = set_counts(*out, hosts, per_host, false);
    if (status < 0) {
        wefti_model_destroy(*out);
        *out = NULL;
    }
    return status;
}

/* ---- topologies ---- */

typedef struct topology {
    int32_t hosts, per_host;
    const char *device;
    const char *intra, *inter; /* NULL: as the device's machine has them */
} topology;

/* "450e9,3e-6": bytes per second of a device, and seconds of latency. */
static weft_status set_link(wefti_machine_model *m, wefti_level *level, const char *key,
                            const char *text) {
    char *end;
    double rate = wefti_real_read(text, &end), latency = -1;
    const char *second = *end == ',' ? end + 1 : end;
    if (*end == ',') latency = wefti_real_read(second, &end);
    WEFT_REQUIRE(*second && second != end && !*end && rate >= 1 && rate <= 1e18 && latency >= 0 &&
                     latency <= 100,
                 WEFT_E_ARG,
                 "%s=%.60s: it must be bytes per second and seconds of latency, such as "
                 "%s=450e9,3e-6",
                 key, text, key);
    if (latency == 0) latency = 0; /* no negative zero, which reads back as another text */
    const char *source = wefti_arena_format(m->arena, "given: %s=%s", key, text);
    WEFT_REQUIRE(source, WEFT_E_NOMEM, "no memory for a machine");
    level->bytes_per_second = (wefti_figure){rate, source};
    level->latency_seconds = (wefti_figure){latency, source};
    level->uplink_bytes_per_second = (wefti_figure){0, NULL};
    level->all_reduce = (wefti_curve){0};
    level->reduces = false;
    level->moved_in_waits = false;
    return WEFT_OK;
}

static weft_status apply_topology(wefti_machine_model *m, const topology *t) {
    WEFT_TRY(set_counts(m, t->hosts, t->per_host ? t->per_host : wefti_model_per_host(m), true));
    if (t->intra) {
        wefti_level host = m->level[m->host_level];
        m->level[0] = host; /* one kind of link in the host: levels within it end */
        for (int32_t i = m->host_level + 1; i < m->level_count; i++)
            m->level[i - m->host_level] = m->level[i];
        m->level_count -= m->host_level;
        m->host_level = 0;
        WEFT_TRY(set_link(m, &m->level[0], "intra", t->intra));
    }
    if (t->inter) {
        const wefti_level network = {.name = "network"};
        m->level_count = m->host_level + 2;
        m->level[m->host_level + 1] = network;
        WEFT_TRY(set_link(m, &m->level[m->host_level + 1], "inter", t->inter));
    }
    return wefti_model_check(m);
}

static weft_status read_pair(char *word, topology *t) {
    static const char *const keys[] = {"hosts",  "gpus",  "devices", "gpu",
                                       "device", "intra", "inter",   NULL};
    char *value = strchr(word, '=');
    WEFT_REQUIRE(value && value[1], WEFT_E_ARG,
                 "topology: '%.60s' is no key=value; keys are hosts, gpus, gpu, intra, inter",
                 word);
    *value++ = '\0';
    int32_t *count = !strcmp(word, "hosts")                              ? &t->hosts
                     : !strcmp(word, "gpus") || !strcmp(word, "devices") ? &t->per_host
                                                                         : NULL;
    const char **text = !strcmp(word, "gpu") || !strcmp(word, "device") ? &t->device
                        : !strcmp(word, "intra")                        ? &t->intra
                        : !strcmp(word, "inter")                        ? &t->inter
                                                                        : NULL;
    if (!count && !text) {
        const char *near = weft_nearest(word, keys);
        WEFT_FAIL(WEFT_E_ARG, "topology: unknown key '%.60s'; %s%s%s", word,
                  near ? "did you mean '" : "keys are hosts, gpus, gpu, intra, inter",
                  near ? near : "", near ? "'?" : "");
    }
    WEFT_REQUIRE(count ? !*count : !*text, WEFT_E_ARG, "topology: '%s' is given twice", word);
    if (count)
        WEFT_REQUIRE(read_count(value, count), WEFT_E_ARG,
                     "topology: %s=%.60s must be a whole number from 1 to %d", word, value,
                     WEFTI_MODEL_DEVICES_MAX);
    else
        *text = value;
    return WEFT_OK;
}

static weft_status find_topology(char *const *word, int count, wefti_machine_model **out) {
    topology t = {0};
    for (int i = 0; i < count; i++) WEFT_TRY(read_pair(word[i], &t));
    WEFT_REQUIRE(t.device, WEFT_E_ARG,
                 "topology: gpu is missing; it names a machine, such as gpu=h100-80g");
    if (!t.hosts) t.hosts = 1;
    WEFT_TRY(find_one(t.device, out));
    weft_status status = apply_topology(*out, &t);
    if (status < 0) {
        wefti_model_destroy(*out);
        *out = NULL;
    }
    return status;
}

weft_status wefti_model_find(const char *text, wefti_machine_model **out) {
    char copy[TEXT_MAX], *word[WORDS_MAX], *rest = copy;
    int count = 0;
    *out = NULL;
    WEFT_REQUIRE(strlen(text) < sizeof copy, WEFT_E_ARG, "a machine of %zu characters; at most %d",
                 strlen(text), TEXT_MAX - 1);
    if (wefti_exists(text) && !wefti_is_dir(text)) return find_file(text, out);
    memcpy(copy, text, strlen(text) + 1);
    for (char *w; (w = strtok_r(rest, " \t\n", &rest));) {
        WEFT_REQUIRE(count < WORDS_MAX, WEFT_E_ARG, "machine '%.100s' has more than %d words", text,
                     WORDS_MAX);
        word[count++] = w;
    }
    WEFT_REQUIRE(count, WEFT_E_ARG, "the machine is an empty text; name one, such as h100-80g");
    if (strchr(text, '=')) return find_topology(word, count, out);
    return count == 1 ? find_one(word[0], out) : find_counted(word, count, text, out);
}

weft_status wefti_links_find(const char *text, wefti_links *out) {
    wefti_machine_model *model;
    if (wefti_exists(text)) {
        char *file;
        int64_t bytes;
        WEFT_TRY(wefti_file_read(text, WEFTI_MODEL_FILE_MAX, &file, &bytes));
        const bool links = !strstr(file, "\"levels\"");
        weft_status status = links ? wefti_links_parse(text, file, bytes, out) : WEFT_OK;
        wefti_free(file);
        if (links) return status;
    }
    WEFT_TRY(wefti_model_find(text, &model));
    *out = wefti_model_links(model);
    wefti_model_destroy(model);
    return WEFT_OK;
}
