/* MindSpore's cost model, in which its searches compare strategies.
 *
 * Costs are bytes, not seconds. They know neither flops nor the topology. They are kept because
 * users of MindSpore know which plans they lead to. Source: the MindSpore documentation,
 * set_cost_model_context; and "Tensor Redistribution". */
#ifndef WEFTI_SEARCH_MINDSPORE_H
#define WEFTI_SEARCH_MINDSPORE_H

#include "search/choice/choice.h"
#include "weft/search.h"

/* The cost of an op or a redistribution, in bytes. */
typedef struct wefti_mindspore_cost {
    double computation;       /* bytes that the forward pass touches */
    double communication;     /* of the whole step */
    double without_parameter; /* the same without gradients of parameters */
    double partial_parameter; /* with gamma of them */
    double forward;           /* communication of the forward pass */
    double memory;            /* parameters, and results that are kept */
} wefti_mindspore_cost;

/* The cost of an op under a strategy:
 * - computation: the slices of all operands; and of the results, if a summed factor is split.
 * - forward: the slices of these results.
 * - backward: the slice of each parameter that is not split over all devices.
 * Messages are corrected: 0 < bytes <= threshold counts `constant`, more bytes count `bias` more.
 */
void wefti_mindspore_op(const weft_mindspore_model *model, const wefti_choice_graph *g,
                        const wefti_choice_node *n, const wefti_assignment *s,
                        wefti_mindspore_cost *out);
/* The cost to bring a value from one layout to another, by MindSpore's own rounds of slices,
 * all-to-alls and gathers. With s the slice of a device and n the size of a group:
 * - slice: s of computation.
 * - all-to-all: 2 s forward and backward.
 * - all-gather: s n / 2 forward and s / 2 backward; and 2 s n of computation and memory for a
 *   dimension other than the first. */
void wefti_mindspore_redistribution(const weft_mindspore_model *model, const wefti_mesh *mesh,
                                    const weft_desc *desc, const wefti_layout *from,
                                    const wefti_layout *to, bool gradient,
                                    wefti_mindspore_cost *out);
/* Seconds of the same rounds on the links of the mesh. A device receives, by rings, s (n - 1) bytes
 * in an all-gather and s (n - 1) / n in an all-to-all. */
double wefti_mindspore_route_seconds(const wefti_mesh *mesh, const weft_desc *desc,
                                     const wefti_layout *from, const wefti_layout *to);
/* alpha computation + beta communication; the communication with a part of the parameters' in
 * training, of the forward pass in inference. */
double wefti_mindspore_time(const weft_mindspore_model *model, const wefti_mindspore_cost *cost);
/* The functions of a graph of choices. `model` is borrowed. */
wefti_pricing wefti_mindspore_pricing(const weft_mindspore_model *model);
/* Checks ranges: no value is negative, and the capacity is positive. */
weft_status wefti_mindspore_check(const weft_mindspore_model *model) WEFT_CHECKED;

#endif
