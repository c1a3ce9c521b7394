/* Predictions: what a dry run has in, seconds and bytes out.
 *
 * The input is one program of each class of equal ranks (program/match.h, builder/fold/fold.h), so
 * the cost depends on the number of classes. search/predict/predict.h builds them from a graph and
 * a plan. Programs may be dry; no data and no weights are needed. */
#ifndef WEFTI_PREDICT_H
#define WEFTI_PREDICT_H

#include "program/match.h"
#include "simulate/simulate.h"
#include "weft/predict.h"

typedef struct wefti_predict_options {
    const wefti_machine_model *machine;
    int32_t microbatches; /* of a step */
    double tokens;        /* of a step of all ranks; 0: unknown */
    double flops;         /* of a step of all ranks, for the MFU; 0: those of the programs, which
                             include recomputation */
    weft_disturbances disturbances;
    /* Receives every span (simulate.h): for timelines. NULL: none. */
    weft_status (*span)(void *context, const wefti_sim_span *span);
    void *context;
    bool (*stop)(void *stop_context); /* as in simulate.h; also asked before each build */
    void *stop_context;
} wefti_predict_options;

/* Classes must match each other (wefti_classes_match); WEFT_E_MISMATCH if ranks wait for each other
 * for ever. The result is for weft_prediction_free. */
weft_status wefti_predict(const wefti_match_classes *classes, const wefti_predict_options *options,
                          weft_prediction **out) WEFT_CHECKED;

/* FLOPs per second that a device can reach in theory. */
double wefti_peak_rate(const wefti_machine_model *machine, wefti_arithmetic arithmetic);
/* Compares the peak with the memory of a device. */
void wefti_predict_fits(const wefti_machine_model *machine, weft_prediction *out);
/* The simulation that a prediction runs. */
wefti_simulate_options wefti_predict_simulation(const wefti_predict_options *options);

#endif
