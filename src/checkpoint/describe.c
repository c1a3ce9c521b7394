/* The texts of `weft checkpoint inspect` and `verify`. See weft/checkpoint.h. */
#include "weft/checkpoint.h"

#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/run/run.h"
#include "checkpoint/step_dir.h"
#include "checkpoint/tensor_set.h"
#include "tensor/tensor.h"

void weft_checkpoint_text_free(char *text) {
    wefti_free(text);
}

static weft_status take_text(wefti_text *t, char **out) {
    char *text = wefti_text_take(t);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for a description");
    *out = text;
    return WEFT_OK;
}

/* ---- inspect ---- */

static void text_lines(wefti_text *t, const wefti_checkpoint_pair *pair) {
    wefti_text_add(t, "%s\n", pair->key);
    for (const char *line = pair->value; *line;) {
        size_t length = strcspn(line, "\n");
        wefti_text_add(t, "  %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static void text_pairs(wefti_text *t, const char *label, const wefti_checkpoint_pairs *pairs) {
    if (!pairs->count) return;
    bool began = false;
    for (int64_t i = 0; i < pairs->count; i++) {
        if (strchr(pairs->items[i].value, '\n')) continue;
        if (!began) wefti_text_add(t, "%-12s", label);
        wefti_text_add(t, " %s=%s", pairs->items[i].key, pairs->items[i].value);
        began = true;
    }
    if (began) wefti_text_add(t, "\n");
    for (int64_t i = 0; i < pairs->count;
         i++) /* texts of several lines, indented below their name */
        if (strchr(pairs->items[i].value, '\n')) text_lines(t, &pairs->items[i]);
}

static void json_pairs(wefti_text *t, const char *key, const wefti_checkpoint_pairs *pairs) {
    wefti_text_add(t, ", \"%s\": {", key);
    for (int64_t i = 0; i < pairs->count; i++) {
        wefti_text_add(t, i ? ", " : "");
        wefti_json_quote(t, pairs->items[i].key);
        wefti_text_add(t, ": ");
        wefti_json_quote(t, pairs->items[i].value);
    }
    wefti_text_add(t, "}");
}

/* One line (or array element) for a tensor. `own`, its entry in a manifest, may be NULL. */
static void add_tensor(wefti_text *t, bool json, bool first, const char *name, const char *dtype,
                       const weft_desc *desc, int64_t bytes, const wefti_checkpoint_entry *own) {
    const char *role = own ? wefti_checkpoint_role_text(own->role) : NULL;
    if (!json) {
        wefti_shape_text shape = wefti_desc_text(desc);
        char size[32];
        wefti_text_add(t, "  %-48s %-24s %12s", name, desc->rank < 0 ? dtype : shape.text,
                       wefti_bytes_text(bytes, size));
        wefti_text_add(t, role ? "  %s\n" : "\n", role);
        return;
    }
    wefti_text_add(t, "%s{\"name\": ", first ? "" : ", ");
    wefti_json_quote(t, name);
    if (role) wefti_text_add(t, ", \"role\": \"%s\"", role);
    wefti_text_add(t, ", \"dtype\": \"%s\", \"shape\": ", dtype);
    for (int d = 0; d < desc->rank; d++)
        wefti_text_add(t, d ? ", %lld" : "[%lld", (long long)desc->shape[d]);
    wefti_text_add(t, desc->rank > 0 ? "]" : desc->rank ? "null" : "[]");
    wefti_text_add(t, ", \"bytes\": %lld", (long long)bytes);
    if (own) {
        wefti_text_add(t, ", \"file\": ");
        wefti_json_quote(t, own->file);
        wefti_text_add(t, ", \"crc32c\": \"%08x\"", own->crc32c);
    }
    wefti_text_add(t, "}");
}

static void text_step(wefti_text *t, const wefti_checkpoint *c) {
    const wefti_checkpoint_meta *meta = wefti_checkpoint_meta_of(c);
    int64_t bytes[WEFTI_CHECKPOINT_ROLES] = {0}, elements[WEFTI_CHECKPOINT_ROLES] = {0};
    for (int64_t i = 0; i < wefti_checkpoint_count(c); i++) {
        const wefti_checkpoint_entry *e = wefti_checkpoint_at(c, i);
        bytes[e->role] += e->bytes;
        elements[e->role] += weft_desc_elems(&e->desc);
    }
    char model[32], state[32];
    wefti_text_add(t, "checkpoint   %s\n", wefti_checkpoint_path(c));
    wefti_text_add(t, "step         %lld, after %lld samples, seed %llu\n", (long long)meta->step,
                   (long long)meta->data_position, (unsigned long long)meta->seed);
    wefti_text_add(t, "model        %lld parameters, %s, fingerprint 0x%016llx\n",
                   (long long)elements[WEFTI_CHECKPOINT_MODEL],
                   wefti_bytes_text(bytes[WEFTI_CHECKPOINT_MODEL], model),
                   (unsigned long long)meta->fingerprint);
    wefti_text_add(t, "optimizer    %s, %s of state\n", *meta->optimizer ? meta->optimizer : "none",
                   wefti_bytes_text(bytes[WEFTI_CHECKPOINT_OPTIMIZER], state));
    text_pairs(t, "settings", &meta->settings);
    text_pairs(t, "random", &meta->random);
    text_pairs(t, "compute", &meta->compute);
    text_pairs(t, "notes", &meta->notes);
    if (meta->loss_count)
        wefti_text_add(t, "loss         %.6g at step %lld\n",
                       meta->losses[meta->loss_count - 1].loss,
                       (long long)meta->losses[meta->loss_count - 1].step);
    wefti_text_add(t, "written by   weft %s; every checksum is right\n", meta->weft_version);
    wefti_text_add(t, "tensors      %lld\n", (long long)wefti_checkpoint_count(c));
}

static void json_step(wefti_text *t, const wefti_checkpoint *c) {
    const wefti_checkpoint_meta *meta = wefti_checkpoint_meta_of(c);
    wefti_text_add(t, "\"checkpoint\": ");
    wefti_json_quote(t, wefti_checkpoint_path(c));
    wefti_text_add(t, ", \"step\": %lld, \"data_position\": %lld, \"seed\": \"0x%016llx\"",
                   (long long)meta->step, (long long)meta->data_position,
                   (unsigned long long)meta->seed);
    wefti_text_add(t, ", \"fingerprint\": \"0x%016llx\", \"weft_version\": ",
                   (unsigned long long)meta->fingerprint);
    wefti_json_quote(t, meta->weft_version);
    wefti_text_add(t, ", \"optimizer\": ");
    wefti_json_quote(t, meta->optimizer);
    json_pairs(t, "settings", &meta->settings);
    json_pairs(t, "random", &meta->random);
    json_pairs(t, "compute", &meta->compute);
    json_pairs(t, "notes", &meta->notes);
    wefti_text_add(t, ", \"losses\": [");
    for (int64_t i = 0; i < meta->loss_count; i++) {
        wefti_text_add(t, "%s[%lld, ", i ? ", " : "", (long long)meta->losses[i].step);
        wefti_json_real(t, meta->losses[i].loss);
        wefti_text_add(t, "]");
    }
    wefti_text_add(t, "], \"tensors\": [");
}

static void add_step(wefti_text *t, bool json, const wefti_checkpoint *c) {
    if (json)
        json_step(t, c);
    else
        text_step(t, c);
    for (int64_t i = 0; i < wefti_checkpoint_count(c); i++) {
        const wefti_checkpoint_entry *e = wefti_checkpoint_at(c, i);
        add_tensor(t, json, i == 0, e->name, wefti_safetensors_dtype_name(e->desc.dtype), &e->desc,
                   e->bytes, e);
    }
    if (json) wefti_text_add(t, "]");
}

static void add_run(wefti_text *t, bool json, const int64_t *steps, int64_t count,
                    const char *note) {
    wefti_text_add(t, json ? "\"steps\": [" : "steps       ");
    for (int64_t i = 0; i < count; i++)
        wefti_text_add(t, json ? "%s%lld" : "%s %lld", json && i ? ", " : "", (long long)steps[i]);
    wefti_text_add(t, json ? "], " : "\n");
    if (json) wefti_text_add(t, "\"note\": ");
    if (json && note) wefti_json_quote(t, note);
    if (json) wefti_text_add(t, note ? ", " : "null, ");
    if (!json && note) wefti_text_add(t, "%s\n", note);
}

static weft_status describe_checkpoint(const char *path, bool json, wefti_text *t) {
    bool own = false;
    WEFT_TRY(wefti_step_is(path, &own));
    wefti_checkpoint *c = NULL;
    char *note = NULL;
    int64_t *steps = NULL, count = 0;
    weft_status status = wefti_checkpoint_open(path, WEFTI_CHECKPOINT_LATEST, &c, &note);
    if (status < 0) wefti_free(note);
    WEFT_TRY(status);
    if (!own) status = wefti_checkpoint_list(path, &steps, &count);
    wefti_text_add(t, json ? "{" : "");
    if (!own && status >= 0) add_run(t, json, steps, count, note);
    add_step(t, json, c);
    wefti_text_add(t, json ? "}\n" : "");
    wefti_free(steps);
    wefti_free(note);
    wefti_checkpoint_close(c);
    return status;
}

static weft_status describe_tensors(const char *path, bool json, wefti_text *t) {
    wefti_tensor_set *set = NULL;
    WEFT_TRY(wefti_tensor_set_open(path, &set));
    int64_t bytes = 0, count = wefti_tensor_set_count(set);
    for (int64_t i = 0; i < count; i++) bytes += wefti_tensor_set_at(set, i)->bytes;
    if (json) {
        wefti_text_add(t, "{\"model\": ");
        wefti_json_quote(t, path);
        wefti_text_add(t, ", \"files\": %lld, \"bytes\": %lld, \"tensors\": [",
                       (long long)wefti_tensor_set_files(set), (long long)bytes);
    } else {
        char size[32];
        wefti_text_add(t, "model        %s\nfiles        %lld\ntensors      %lld, %s\n", path,
                       (long long)wefti_tensor_set_files(set), (long long)count,
                       wefti_bytes_text(bytes, size));
    }
    for (int64_t i = 0; i < count; i++) {
        const wefti_safetensors_entry *e = wefti_tensor_set_at(set, i);
        add_tensor(t, json, i == 0, e->name, e->dtype, &e->desc, e->bytes, NULL);
    }
    if (json) wefti_text_add(t, "]}\n");
    wefti_tensor_set_close(set);
    return WEFT_OK;
}

weft_status weft_checkpoint_describe(const char *path, int json, char **out_text) {
    wefti_text t = {0};
    bool steps = false;
    WEFT_TRY(wefti_step_holds(path, &steps));
    weft_status status =
        steps ? describe_checkpoint(path, json != 0, &t) : describe_tensors(path, json != 0, &t);
    if (status < 0) {
        wefti_text_free(&t);
        return status;
    }
    return take_text(&t, out_text);
}

/* ---- verify ---- */

typedef struct findings {
    wefti_text text;
    bool json;
    int64_t good, damaged, unfinished;
} findings;

/* Records one result. A status other than success, damage and WEFT_E_NOT_FOUND, which is that of an
 * unfinished step, ends the verification. */
static weft_status add_finding(findings *f, const char *name, weft_status result,
                               const char *note) {
    if (result < 0 && result != WEFT_E_CORRUPT && result != WEFT_E_NOT_FOUND) return result;
    const bool unfinished = result == WEFT_E_NOT_FOUND;
    wefti_text *t = &f->text;
    if (f->json) {
        wefti_text_add(t, f->good + f->damaged + f->unfinished ? ", {\"name\": " : "{\"name\": ");
        wefti_json_quote(t, name);
        wefti_text_add(t, ", \"good\": %s, \"unfinished\": %s, \"message\": ",
                       result < 0 ? "false" : "true", unfinished ? "true" : "false");
        wefti_json_quote(t, result < 0 ? weft_error_message() : note);
        wefti_text_add(t, "}");
    } else if (result < 0) {
        wefti_text_add(t, "%-20s  %s: %s\n", name, unfinished ? "unfinished" : "DAMAGED",
                       weft_error_message());
    } else {
        wefti_text_add(t, *note ? "%-20s  good, but: %s\n" : "%-20s  good\n", name, note);
    }
    f->good += result >= 0;
    f->unfinished += unfinished;
    f->damaged += result < 0 && !unfinished;
    return WEFT_OK;
}

static weft_status verify_tensors(const char *path, findings *f) {
    wefti_tensor_set *set = NULL;
    weft_status status = wefti_tensor_set_open(path, &set);
    if (status >= 0) wefti_tensor_set_close(set);
    if (status == WEFT_E_NOT_FOUND) return status;
    return add_finding(f, path, status, "");
}

/* A sliced step is good as long as every part is there once. */
static weft_status verify_step(const char *path, int64_t step, const char *name, findings *f) {
    wefti_checkpoint *c = NULL;
    wefti_text lost = {0};
    weft_status result = wefti_checkpoint_open(path, step, &c, NULL);
    if (result >= 0 && wefti_checkpoint_sliced(c))
        result = wefti_sliced_verify(wefti_checkpoint_sliced(c), &lost);
    weft_status status = add_finding(f, name, result, lost.used ? lost.data : "");
    wefti_text_free(&lost);
    wefti_checkpoint_close(c);
    return status;
}

static weft_status verify_steps(const char *path, findings *f) {
    bool own = false;
    WEFT_TRY(wefti_step_is(path, &own));
    if (own) return verify_step(path, WEFTI_CHECKPOINT_LATEST, path, f);
    int64_t *steps = NULL, count = 0;
    WEFT_TRY(wefti_run_steps(path, &steps, &count));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < count && status >= 0; i++) {
        char name[WEFTI_STEP_NAME_BYTES];
        status =
            verify_step(path, steps[i], wefti_step_name(WEFTI_STEP_COMMITTED, steps[i], name), f);
    }
    wefti_free(steps);
    return status;
}

weft_status weft_checkpoint_verify(const char *path, int json, char **out_text) {
    bool steps = false;
    WEFT_TRY(wefti_step_holds(path, &steps));
    findings f = {.json = json != 0};
    if (f.json) wefti_text_add(&f.text, "{\"results\": [");
    weft_status status = steps ? verify_steps(path, &f) : verify_tensors(path, &f);
    if (status < 0) {
        wefti_text_free(&f.text);
        return status;
    }
    if (f.json)
        wefti_text_add(&f.text, "], \"good\": %s}\n", f.damaged || !f.good ? "false" : "true");
    else if (!steps)
        wefti_text_add(&f.text, "the format is right; such files carry no checksums\n");
    WEFT_TRY(take_text(&f.text, out_text));
    WEFT_REQUIRE(!f.damaged, WEFT_E_CORRUPT, "%lld of %lld in %s are damaged", (long long)f.damaged,
                 (long long)(f.good + f.damaged), path);
    WEFT_REQUIRE(f.good, WEFT_E_NOT_FOUND, "%s has no finished step", path);
    return WEFT_OK;
}
