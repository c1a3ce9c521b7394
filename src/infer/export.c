/* Writes an exported model. Collective: each rank writes its own weights, rank 0 all else. The
 * folder appears when it is complete. */
#include <string.h>

#include "base/io.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "infer/exported.h"
#include "plan/plan.h"

static weft_status write_text(const char *folder, const char *name, const char *text,
                              uint32_t *out_sum) {
    char *path = wefti_format("%s/%s", folder, name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_file_write(path, text, strlen(text));
    if (status >= 0 && out_sum) status = wefti_exported_sum(path, out_sum);
    wefti_free(path);
    return status;
}

static weft_status write_program(const weft_infer *f, const char *folder, wefti_exported *facts) {
    const wefti_built *b = &f->model.built;
    const weft_plan *plan = wefti_session_origin_of(b->session).plan;
    char *text;
    WEFT_TRY(weft_graph_print(b->model.eval_graph, &text));
    weft_status status = write_text(folder, "graph.txt", text, &facts->graph);
    weft_text_free(text);
    facts->has_plan = plan != NULL;
    if (status < 0 || !plan) return status;
    WEFT_TRY(weft_plan_print(plan, &text));
    status = write_text(folder, "plan.json", text, &facts->plan);
    weft_text_free(text);
    return status;
}

/* What tells the meaning of tokens, and how images are prepared. */
static weft_status write_side(const weft_infer *f, const char *folder) {
    wefti_side_files side = {0};
    weft_status status =
        wefti_side_files_add(&side, f->model.path, WEFTI_SIDE_MODEL | WEFTI_SIDE_TOKENIZER);
    if (status >= 0) status = wefti_side_files_write(&side, folder);
    wefti_side_files_free(&side);
    return status;
}

static weft_status make(const wefti_safetensors_item *item, void *room) {
    const wefti_session_piece *piece = item->data;
    return wefti_home_read(&piece->home, 0, piece->home.bytes, room);
}

/* Of a device of this process. */
static weft_status write_rank(const weft_infer *f, const char *folder, int rank, uint32_t *out) {
    wefti_exported_tensors tensors;
    char *path = wefti_exported_rank_file(folder, rank);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_exported_list(f->model.built.session, rank, &tensors);
    if (status >= 0)
        status = wefti_safetensors_write_made(path, tensors.items, tensors.count, NULL, 0, make);
    if (status >= 0) status = wefti_exported_sum(path, out);
    wefti_exported_tensors_free(&tensors);
    wefti_free(path);
    return status;
}

static weft_status write_ranks(const weft_infer *f, const char *folder, wefti_exported *facts) {
    const wefti_party *party = &f->model.setup.party;
    if (!party->agreement) {
        for (int r = 0; r < facts->devices; r++)
            WEFT_TRY(write_rank(f, folder, r, &facts->ranks[r]));
        return WEFT_OK;
    }
    uint32_t own = 0;
    WEFT_TRY(wefti_party_agree(party, write_rank(f, folder, wefti_party_rank(party), &own)));
    return wefti_agree_records(party->agreement, &own, sizeof own, facts->ranks);
}

/* Rank 0 must see what the others wrote. */
static weft_status finish(const weft_infer *f, const char *partial, const char *folder,
                          const wefti_exported *facts) {
    char *text = NULL;
    if (f->model.setup.party.follows) return WEFT_OK;
    for (int r = 0; r < facts->devices; r++) {
        char *path = wefti_exported_rank_file(partial, r);
        const bool there = path && !wefti_is_missing(path);
        wefti_free(path);
        WEFT_REQUIRE(there, WEFT_E_NOT_FOUND,
                     "rank 0 does not see what rank %d wrote to %s: all ranks must see the folder",
                     r, folder);
    }
    WEFT_TRY(wefti_exported_print(facts, &text));
    weft_status status = write_text(partial, "exported.json", text, NULL);
    wefti_free(text);
    if (status >= 0) status = wefti_dir_sync(partial);
    return status >= 0 ? wefti_rename(partial, folder) : status;
}

static weft_status begin(const weft_infer *f, const char *partial, const char *folder) {
    if (f->model.setup.party.follows) return WEFT_OK;
    WEFT_TRY(wefti_check_new(folder));
    WEFT_TRY(wefti_remove_tree(partial)); /* of a run that was killed */
    return wefti_dir_make(partial);
}

static weft_status write_all(weft_infer *f, const char *partial, const char *folder,
                             wefti_exported *facts) {
    const bool leads = !f->model.setup.party.follows;
    WEFT_TRY(wefti_party_agree(&f->model.setup.party, begin(f, partial, folder)));
    weft_status status = leads ? write_program(f, partial, facts) : WEFT_OK;
    if (status >= 0 && leads) status = write_side(f, partial);
    status = wefti_party_agree(&f->model.setup.party, status);
    if (status >= 0) status = write_ranks(f, partial, facts);
    bool stop = false;
    if (status >= 0) status = wefti_trained_stops(&f->model, &stop);
    if (status >= 0 && stop)
        status = WEFT_RAISE(WEFT_E_STOPPED, "stopped before %s was complete", folder);
    if (status >= 0)
        status = wefti_party_agree(&f->model.setup.party, finish(f, partial, folder, facts));
    if (status >= 0 || !leads) return status;
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    if (wefti_remove_tree(partial) < 0) wefti_error_clear();
    return wefti_failure_tell(&failure);
}

weft_status weft_infer_export(weft_infer *f, const char *folder) {
    WEFT_REQUIRE(f, WEFT_E_ARG, "an export needs a model");
    const wefti_built *b = &f->model.built;
    wefti_exported facts = {.family = b->model.config.family,
                            .vocab = f->language ? b->model.config.vocab : 0,
                            .bf16 = weft_session_bf16(b->session),
                            .devices = weft_session_devices(b->session)};
    char *partial = wefti_format("%s.partial", folder ? folder : "");
    facts.ranks = wefti_calloc((size_t)facts.devices, sizeof *facts.ranks);
    weft_status status = WEFT_OK;
    if (!folder || !*folder)
        status = WEFT_RAISE(WEFT_E_ARG, "an export needs a folder");
    else if (!partial || !facts.ranks)
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for an export");
    status = wefti_party_agree(&f->model.setup.party, status);
    if (status >= 0) status = write_all(f, partial, folder, &facts);
    wefti_free(facts.ranks);
    wefti_free(partial);
    return status;
}
