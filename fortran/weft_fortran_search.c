/* Searches for plans and predicted steps of the Fortran module `weft`. */
#include "weft_fortran.h"

weft_search_options weft_fortran_search_defaults(void) {
    return weft_search_defaults();
}

/* Texts that were left out: those of the options. */
weft_status weft_fortran_plan_search(weft_graph *graph, const weft_plan *settings,
                                     const weft_search_options *options, const CFI_cdesc_t *machine,
                                     const CFI_cdesc_t *fix, weft_plan **out, char **out_notes) {
    weft_search_options o = options ? *options : weft_search_defaults();
    WEFT_FORTRAN_TEXT(where, machine);
    WEFT_FORTRAN_TEXT(constraints, fix);
    if (*where) o.machine = where;
    if (*constraints) o.fix = constraints;
    return weft_plan_search(graph, settings, &o, out, out_notes);
}

/* `tokens`, `failing`, `fail_seconds` NULL: 0. */
weft_status weft_fortran_plan_predict(weft_graph *graph, const CFI_cdesc_t *machine,
                                      weft_prediction **out, weft_plan *const *plan,
                                      const weft_session_options *session, const double *tokens,
                                      const CFI_cdesc_t *trace, const CFI_cdesc_t *report,
                                      int rank_count, const weft_slow_rank *slow_ranks,
                                      int link_count, const weft_slow_link *slow_links,
                                      const int *failing, const double *fail_seconds) {
    WEFT_FORTRAN_TEXT(where, machine);
    WEFT_FORTRAN_TEXT(timeline, trace);
    WEFT_FORTRAN_TEXT(page, report);
    const weft_predict_options o =
        WEFT_STRUCT(weft_predict_options, .machine = where,
                    .disturbances = {.slow_ranks = slow_ranks,
                                     .slow_rank_count = rank_count,
                                     .slow_links = slow_links,
                                     .slow_link_count = link_count,
                                     .failing = failing ? *failing : 0,
                                     .fail_seconds = fail_seconds ? *fail_seconds : 0},
                    .tokens = tokens ? *tokens : 0, .trace = *timeline ? timeline : NULL,
                    .report = *page ? page : NULL);
    return weft_plan_predict(graph, plan ? *plan : NULL, session, &o, out);
}
