! The Fortran module: worlds, collectives, graphs, sessions, and what errors say.
module fortran_test_functions
    use, intrinsic :: iso_fortran_env, only: real64
    use weft
    implicit none
contains
    type(weft_value) function own_activation(graph, x) bind(C)
        type(weft_graph), value :: graph
        type(weft_value), value :: x
        own_activation = weft_scale(graph, weft_relu(graph, x), 2._real64)
    end function
end module

program fortran_test
    use, intrinsic :: iso_c_binding, only: c_bool
    use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
    use mpi
    use weft
    use fortran_test_functions
    implicit none
    integer :: error, rank, size, i, program_number
    integer(int64) :: least
    integer(int64), parameter :: count = 5
    real(real32) :: mine(5), sums(5), x(3, 4), w(2, 3), y(2, 4), b(2)
    real(real32), allocatable :: gathered(:, :)
    real(real64) :: loss, token
    type(weft_world) :: world
    type(weft_group) :: group
    type(weft_graph) :: graph, broken
    type(weft_session) :: session
    type(weft_session_options) :: options
    type(weft_value) :: v, weight, product

    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, size, error)

    call expect(weft_world_from_mpi(MPI_COMM_NULL, world) == WEFT_E_ARG, 'a null communicator is refused')
    call expect(index(weft_error_message(), 'MPI_COMM_NULL') > 0, 'the message names it')
    call expect(weft_status_text(WEFT_E_SHAPE) == 'shapes do not fit', 'texts of statuses')
    call expect(weft_world_from_mpi(MPI_COMM_WORLD, world, wait_seconds=100._real64) >= 0, 'a world')
    call expect(weft_world_rank(world) == rank .and. weft_world_size(world) == size, 'its ranks')
    call expect(size == 1 .or. len(weft_world_communicator(world)) > 0, 'its communicator')

    ! Collectives.
    mine = [(real(rank*10 + i), i=1, 5)]
    allocate (gathered(5, 0:size - 1))
    call expect(weft_all_gather(world, mine, gathered) >= 0, 'all_gather')
    do i = 0, size - 1
        call expect(gathered(3, i) == real(i*10 + 3), 'what all_gather brings')
    end do
    call expect(weft_all_reduce(world, mine, sums, WEFT_REDUCE_SUM) >= 0, 'all_reduce')
    call expect(sums(2) == sum(gathered(2, :)), 'a sum')
    call expect(weft_all_reduce_in_place(world, mine, WEFT_REDUCE_MAX) >= 0, 'in place')
    call expect(mine(5) == real((size - 1)*10 + 5), 'a maximum')
    least = 50 - rank
    call expect(weft_all_reduce_in_place(world, least, WEFT_REDUCE_MIN) >= 0, 'of a scalar')
    call expect(least == 51 - size, 'a minimum')
    if (rank == 0) mine = 7
    call expect(weft_broadcast(world, mine, 0, count=count, dtype=WEFT_F32) >= 0, 'broadcast')
    call expect(all_equal(mine, 7.), 'what it brings')
    token = 0
    if (rank > 0) call expect(weft_recv(world, token, rank - 1, 4) >= 0, 'recv')
    token = token + 1
    if (rank + 1 < size) call expect(weft_send(world, token, rank + 1, 4) >= 0, 'send')
    call expect(token == rank + 1, 'a token')
    call expect(weft_group_create(world, [0], group) >= 0, 'a group')
    if (rank == 0) call expect(weft_all_reduce(world, mine, sums, WEFT_REDUCE_SUM, group) >= 0, 'of a group')
    call weft_group_destroy(group)
    call expect(weft_barrier(world) >= 0, 'barrier')
    call more_collectives
    call not_beyond_arrays

    ! A graph for one device: y = x w + b, forward only.
    call expect(weft_graph_create(graph) >= 0, 'a graph')
    v = weft_input(graph, 'x', WEFT_F32, [4, 3])
    call weft_cell_begin(graph, 'dense')
    weight = weft_param(graph, 'weight', WEFT_F32, [3, 2], weft_init(WEFT_INIT_ZEROS))
    product = weft_cell_end(graph, weft_linear(graph, v, weight, weft_param(graph, 'bias', WEFT_F32, [2], &
        weft_init(WEFT_INIT_CONSTANT, 0.5))))
    call weft_output(graph, 'y', weft_scale(graph, product, 2._real64))
    call weft_loss(graph, weft_mse(graph, product, weft_input(graph, 'target', WEFT_F32, [4, 2])))
    call expect(weft_graph_status(graph) >= 0, 'it is good')
    options = weft_session_defaults()
    options%threads = 1
    options%optimizer%kind = WEFT_SGD
    options%seed = 3
    call expect(weft_session_create(graph, options, session) >= 0, 'a session')
    x = reshape([(real(i), i=1, 12)], [3, 4])
    w = reshape([1., 10., 2., 20., 3., 30.], [2, 3])
    y = 0
    call expect(weft_session_write(session, 'dense.weight', w) >= 0, 'write')
    call expect(weft_session_feed(session, 'x', x) >= 0, 'feed')
    call expect(weft_session_feed(session, 'target', y) >= 0, 'feed')
    call expect(weft_session_step(session, 0._real64, loss) >= 0, 'step')
    call expect(weft_session_read(session, 'y', y) >= 0, 'read')
    call expect(y(1, 1) == 2*(1*1 + 2*2 + 3*3 + 0.5) .and. y(2, 4) == 2*(10*(1*10 + 2*11 + 3*12) + 0.5), 'a product')
    call expect(loss > 0, 'a loss')
    call expect(weft_session_read(session, 'dense.bias', b) >= 0, 'read a parameter')
    call expect(all_equal(b, 0.5), 'its value')
    call tensors_are_listed
    call expect(weft_version_number() == WEFT_VERSION_MAJOR*1000000 + WEFT_VERSION_MINOR*1000 + &
        WEFT_VERSION_PATCH, 'the version of the library')
    call expect(weft_session_load_local(session, 'no/such file') == WEFT_E_NOT_FOUND, 'no slice')
    call expect(index(weft_error_message(), 'no/such file:') > 0, 'its name')
    call expect(weft_session_save_local(session, 'no/such file') == WEFT_E_NOT_FOUND, 'no place for a slice')
    call expect(weft_session_read(session, 'nothing', b) == WEFT_E_NOT_FOUND, 'an unknown name')
    call expect(index(weft_error_message(), 'nothing') > 0, 'is named')
    call expect(weft_session_feed(session, 'x', b) == WEFT_E_SHAPE, 'a wrong size')
    call expect(weft_session_feed(session, 'x', [(1._real64, i=1, 6)]) == WEFT_E_ARG, 'a wrong kind of the right size')
    call expect(weft_error_message() == "'x' is f32; the array is f64", 'is told')
    call expect(weft_session_add(session, graph, program_number) >= 0, 'a graph is added after the first step')
    call expect(program_number == 1, 'its number')
    call weft_session_destroy(session)
    call weft_graph_destroy(graph)

    call a_model_of_many_operations
    call a_session_of_all_ranks
    call plans_are_texts
    call plans_are_searched_and_predicted
    call models_and_data

    ! The first error of building is kept.
    call expect(weft_graph_create(broken) >= 0, 'another graph')
    v = weft_input(broken, 'x', WEFT_F32, [4, 3])
    v = weft_relu(broken, weft_matmul(broken, v, v))
    call expect(weft_graph_status(broken) == WEFT_E_SHAPE, 'shapes that do not fit')
    call expect(index(weft_graph_message(broken), 'matmul') > 0, 'are told')
    call weft_graph_destroy(broken)

    call weft_world_leave(world)
    call MPI_Barrier(MPI_COMM_WORLD, error)
    if (rank == 0) print '(i0, a)', size, ' ranks: Fortran has it all'
    call MPI_Finalize(error)

contains

    ! The forms that do not wait, blocks, and roots.
    subroutine more_collectives
        real(real64), asynchronous :: part(2), whole(2, 0:size - 1), own(2)
        integer(int32) :: numbers(0:size - 1), others(0:size - 1)
        type(weft_request) :: request
        integer :: state, r
        part = [real(rank, real64), 0.5_real64]
        call expect(weft_all_gather_start(world, part, whole, request) >= 0, 'all_gather_start')
        call expect(weft_request_wait(request) >= 0, 'wait')
        call expect(all([(whole(1, r) == r, r=0, size - 1)]), 'what it brings')
        call expect(weft_all_reduce_in_place_start(world, part, WEFT_REDUCE_SUM, request) >= 0, 'all_reduce_in_place_start')
        do
            state = weft_request_test(request)
            if (state /= WEFT_PENDING) exit
        end do
        call expect(state == WEFT_OK .and. part(2) == 0.5*size, 'test')
        numbers = [(100*rank + r, r=0, size - 1)]
        call expect(weft_all_to_all(world, numbers, others) >= 0, 'all_to_all')
        call expect(all(others == [(100*r + rank, r=0, size - 1)]), 'blocks of all')
        call expect(weft_all_to_all_v(world, numbers, [(1_int64, r=0, size - 1)], others, [(1_int64, r=0, size - 1)]) >= 0, &
            'all_to_all_v')
        call expect(weft_reduce_scatter(world, whole, own, WEFT_REDUCE_MAX) >= 0, 'reduce_scatter')
        call expect(own(1) == rank, 'its block')
        own = rank
        call expect(weft_reduce(world, own, part, WEFT_REDUCE_MIN, 0) >= 0, 'reduce')
        call expect(weft_gather(world, own, whole, 0) >= 0, 'gather')
        call expect(rank > 0 .or. (part(1) == 0 .and. whole(2, size - 1) == size - 1), 'what the root has')
        call expect(weft_scatter(world, whole, own, 0) >= 0, 'scatter')
        call expect(own(1) == rank, 'its part')
        call expect(weft_broadcast(world, whole(:, 0:0), 0) >= 0, 'a section')
        ! To the right and from the left, around.
        call expect(weft_neighbor_exchange(world, numbers, [mod(rank + 1, size)], [2_int64], 1, others, &
            [mod(rank + size - 1, size)], [2_int64], 1) >= 0 .or. size < 2, 'neighbor_exchange')
        call grids
    end subroutine

    ! A plane of 3 x 2*size cells whose second dimension, the first one of the grid, is split and a ring.
    subroutine grids
        real(real64), asynchronous :: u(0:4, 0:3), small(2)
        integer(int64) :: first(3), cells(3)
        type(weft_grid) :: grid
        type(weft_halo) :: ring
        type(weft_request) :: request
        integer :: i, j
        grid%dimensions = 2
        grid%parts(1) = size
        grid%cells(1:2) = [2_int64*size, 3_int64]
        grid%before(1:2) = 1
        grid%after(1:2) = 1
        grid%periodic(1) = .true.
        call expect(weft_grid_tile(grid, rank, first, cells) >= 0 .and. first(1) == 2*rank .and. cells(2) == 3, 'grid_tile')
        u = -1
        do j = 1, 2
            u(1:3, j) = [(10*(first(1) + j - 1) + i, i=1, 3)]
        end do
        call expect(weft_grid_exchange(world, u, 1_int64, grid) >= 0, 'grid_exchange')
        call expect(all(u(1:3, 0) == [(10*mod(first(1) - 1 + 2*size, 2_int64*size) + i, i=1, 3)]), 'the layer before')
        call expect(all(u(1:3, 3) == [(10*mod(first(1) + 2, 2_int64*size) + i, i=1, 3)]), 'the layer behind')
        call expect(all(u(0, :) == -1) .and. all(u(4, :) == -1), 'ends stay')
        call expect(weft_grid_exchange_start(world, u, 1_int64, grid, request) >= 0, 'grid_exchange_start')
        call expect(weft_request_wait(request) >= 0, 'wait for layers')
        call expect(weft_grid_exchange(world, small, 1_int64, grid) == WEFT_E_SHAPE, 'a small array')
        ring = weft_halo_on_ring(size, 1, rank, [1_int64, 1_int64, 0_int64, 0_int64], .true._c_bool, .false._c_bool)
        call expect(ring%ranks(1) == mod(rank + size - 1, size) .and. ring%ranks(3) == -1, 'halo_on_ring')
    end subroutine

    ! Calls that would read or write beyond an array, or copy where nobody could, are refused; alone, before anyone waits.
    subroutine not_beyond_arrays
        real(real32), asynchronous :: small(2), large(10)
        real(real64) :: exact(10)
        integer(int32) :: odd(size + 1)
        integer, parameter :: int16 = selected_int_kind(4)
        integer(int16) :: halves(3) = 1_int16
        type(weft_request) :: request
        call expect(weft_all_reduce(world, large, small, WEFT_REDUCE_SUM) == WEFT_E_SHAPE, 'a destination that is too small')
        call expect(index(weft_error_message(), "'destination' has 8 bytes; the call needs 40") > 0, 'is told')
        call expect(weft_send(world, small, 0, 0, count=3_int64) == WEFT_E_SHAPE, 'a count beyond the array')
        call expect(size == 1 .or. weft_all_to_all(world, odd, odd) == WEFT_E_SHAPE, 'blocks that are not equal')
        call expect(weft_all_reduce_in_place_start(world, large(1:10:2), WEFT_REDUCE_SUM, request) == WEFT_E_ARG, 'strides')
        call expect(index(weft_error_message(), 'not contiguous') > 0, 'are told')
        call expect(weft_broadcast(world, halves, 0) == WEFT_E_ARG, 'a type that weft does not have')
        call expect(weft_broadcast(world, halves, 0, dtype=WEFT_U16) >= 0, 'as what it is meant for')
        call expect(weft_all_reduce(world, large, exact, WEFT_REDUCE_SUM) == WEFT_E_ARG, 'a destination of another type')
        call expect(index(weft_error_message(), "'destination' is f64; the other one is f32") > 0, 'is told so')
        large = 1
        call expect(weft_all_reduce(world, large, exact, WEFT_REDUCE_SUM, dtype=WEFT_F32) >= 0, 'unless the type is said')
        call strided
    end subroutine
    ! The compiler brings strides together and back.
    subroutine strided
        real(real32) :: x(6)
        x = [1., 2., 3., 4., 5., 6.]
        call expect(weft_all_reduce_in_place(world, x(1:6:2), WEFT_REDUCE_SUM) >= 0, 'every other element')
        call expect(all(abs(x/real([size, 1, size, 1, size, 1]) - [1., 2., 3., 4., 5., 6.]) < 1e-6), 'and no other')
    end subroutine

    subroutine tensors_are_listed
        type(weft_tensor_info) :: info
        type(weft_session_memory) :: memory
        integer :: k, found
        found = 0
        do k = 0, weft_session_tensors(session, 0) - 1
            call expect(weft_session_tensor(session, 0, k, info) >= 0, 'a tensor')
            if (info%name == 'dense.weight' .and. info%role == WEFT_ROLE_PARAM) found = found + 1
        end do
        call expect(found == 1, 'the weight among them')
        call expect(weft_session_find(session, 0, 'x', info) >= 0, 'find')
        call expect(info%desc%dtype == WEFT_F32 .and. info%desc%rank == 2 .and. info%desc%shape(1) == 4 .and. &
            info%bytes == 48, 'what it is')
        memory = weft_session_memory_of(session)
        call expect(memory%predicted_peak_bytes == memory%observed_peak_bytes .and. memory%forward_flops > 0, 'memory')
        call expect(weft_session_step_number(session) == 1 .and. weft_session_devices(session) == 1, 'numbers')
    end subroutine

    ! Flags, axes, lists, options: what each means is said by the shapes that come out.
    subroutine a_model_of_many_operations
        type(weft_graph) :: g
        type(weft_value) :: x, y, parts(2), index, ends(2)
        type(weft_attention_options) :: how
        type(weft_dense_options) :: plain
        character(len=:), allocatable :: text
        call expect(weft_graph_create(g) >= 0, 'a graph')
        x = weft_input(g, 'x', WEFT_F32, [2, 3, 8])
        call expect(has_shape(g, weft_transpose(g, x, [0, 2, 1]), [2, 8, 3]), 'transpose')
        call expect(has_shape(g, weft_matmul(g, x, x, transpose_b=.true.), [2, 3, 3]), 'matmul')
        call expect(has_shape(g, weft_sum(g, x, [2], keep=.true.), [2, 3, 1]), 'sum')
        call expect(has_shape(g, weft_mean(g, x), [integer ::]), 'mean')
        call expect(has_shape(g, weft_max(g, x, [-1]), [2, 3]), 'max')
        call expect(has_shape(g, weft_slice(g, x, 1, 0, 2), [2, 2, 8]), 'slice')
        call expect(has_shape(g, weft_pad(g, x, [0, 1], [0, 1], 0._real64), [2, 5, 8]), 'pad')
        call expect(has_shape(g, weft_reshape(g, x, [6, -1]), [6, 8]), 'reshape')
        call expect(has_shape(g, weft_top_k(g, x, 2, index), [2, 3, 2]), 'top_k')
        call expect(has_shape(g, weft_one_hot(g, index, 9, WEFT_F32), [2, 3, 2, 9]), 'one_hot')
        call weft_split(g, x, 2, parts)
        call expect(has_shape(g, parts(2), [2, 3, 4]), 'split')
        call expect(has_shape(g, weft_concat(g, [parts, parts], 1), [2, 12, 4]), 'concat')
        y = weft_reshape(g, x, [2, 3, 2, 4])
        how%causal = .true.
        how%window = 2
        call expect(has_shape(g, weft_attention(g, y, y, y, how), [2, 3, 2, 4]), 'attention')
        call expect(has_shape(g, weft_max_pool2d(g, y, [2, 2], [1, 2], [0, 0]), [2, 3, 1, 2]), 'max_pool2d')
        y = weft_conv2d(g, y, weft_param(g, 'kernel', WEFT_F32, [5, 3, 1, 1], weft_init(WEFT_INIT_NORMAL, 1)), WEFT_NO_VALUE, &
            weft_conv_options())
        call expect(has_shape(g, y, [2, 5, 2, 4]), 'conv2d')
        call weft_cell_begin(g, 'two')
        ends = [weft_neg(g, x), weft_exp(g, x)]
        call weft_cell_end_many(g, ends)
        plain%no_bias = .true.
        y = weft_dense(g, 'layer', ends(2), 6, own_activation, plain)
        call expect(has_shape(g, y, [2, 3, 6]), 'dense')
        call weft_output(g, 'y', y)
        call expect(weft_graph_status(g) >= 0, 'all of it is good')
        call expect(weft_graph_print(g, text) >= 0, 'print')
        call expect(index_of(text, 'layer.weight') .and. .not. index_of(text, 'layer.bias') .and. index_of(text, 'causal'), &
            'its text')
        call weft_graph_destroy(g)
        call expect(weft_graph_parse(text, g) >= 0, 'parse')
        call weft_graph_destroy(g)
    end subroutine
    logical function index_of(text, part)
        character(len=*), intent(in) :: text, part
        index_of = index(text, part) > 0
    end function
    logical function has_shape(graph, x, shape)
        type(weft_graph), intent(in) :: graph
        type(weft_value), intent(in) :: x
        integer, intent(in) :: shape(:)
        type(weft_desc) :: desc
        desc = weft_value_desc(graph, x)
        has_shape = desc%rank == ubound(shape, 1)
        if (has_shape) has_shape = all(desc%shape(:desc%rank) == shape)
    end function

    ! Each rank has two rows; the mean over all is known.
    subroutine a_session_of_all_ranks
        type(weft_graph) :: g
        type(weft_session) :: s
        type(weft_value) :: x
        type(weft_session_part) :: part
        real(real64) :: loss
        real(real32) :: rows(3, 2), weight(3), outputs(2)
        integer(int64) :: first_row, row_count
        type(weft_plan) :: its_plan
        character(len=:), allocatable :: program_text
        call expect(weft_graph_create(g) >= 0, 'a graph')
        x = weft_input(g, 'x', WEFT_F32, [2*size, 3])
        x = weft_linear(g, x, weft_param(g, 'weight', WEFT_F32, [3, 1], weft_init(WEFT_INIT_CONSTANT, 1)))
        call weft_output(g, 'y', x)
        call weft_loss(g, weft_mean(g, x))
        call expect(weft_session_create(g, session=s, world=world) >= 0, 'a session without options and plan')
        call expect(weft_session_devices(s) == size, 'has a device for each rank')
        call expect(weft_session_rows(s, 0, 'x', first_row, row_count) >= 0, 'rows')
        call expect(first_row == 2*rank .and. row_count == 2, 'the rows to feed')
        call expect(weft_session_plan(s, its_plan) >= 0, 'plan')
        call expect(weft_plan_devices(its_plan) == size, 'the plan of a session')
        call weft_plan_destroy(its_plan)
        call expect(weft_session_program_text(s, 0, rank, program_text) >= 0, 'program_text')
        call expect(index(program_text, 'weight') > 0, 'the text of a program')
        call expect(weft_session_program_json(s, 0, rank, program_text) >= 0, 'program_json')
        call expect(program_text(1:1) == '{', 'a program as JSON')
        rows = rank
        call expect(weft_session_feed_rows(s, 'x', rows) >= 0, 'feed_rows')
        call expect(weft_session_step(s, 0._real64, loss) >= 0, 'a step')
        call expect(abs(loss - 1.5*(size - 1)) < 1e-6, 'the mean over all ranks')
        if (size > 1) call expect(weft_session_local(s, 'x', part) >= 0, 'local')
        if (size > 1) call expect(part%begin(1) == 2*rank .and. part%size(1) == 2 .and. part%bytes == 24, 'its rows')
        if (size > 1) call expect(weft_session_feed_local(s, 'x', rows) >= 0, 'feed_local')
        call expect(weft_session_read(s, 'weight', weight) >= 0 .and. all_equal(weight, 1.), 'nothing was learned')
        call expect(weft_session_read_rows(s, 'y', outputs, first_row) >= 0, 'read_rows')
        call expect(all_equal(outputs, 3.*rank), 'the outputs of the rows that it fed')
        call expect(weft_session_read_rows(s, 'y', outputs, 2_int64*size) < 0, 'rows past the end')
        call expect(weft_session_check_replicas(s) >= 0, 'equal everywhere')
        call weft_session_destroy(s)
        call weft_graph_destroy(g)
    end subroutine

    subroutine plans_are_texts
        type(weft_plan) :: a, b
        character(len=:), allocatable :: text, difference
        call expect(weft_plan_create(4, a) >= 0, 'a plan')
        call expect(weft_plan_axis(a, 'dp', 2) >= 0 .and. weft_plan_axis(a, 'tp', 2) >= 0, 'axes')
        call expect(weft_plan_recompute(a, WEFT_RECOMPUTE_FULL) >= 0, 'recompute')
        call expect(weft_plan_offload(a, 'h.*', WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_HOST) >= 0, 'offload')
        call expect(weft_plan_cache(a, 'h.*', WEFT_OFFLOAD_OPTIMIZER, 4096_int64) < 0, 'cache on the host')
        call expect(weft_plan_offload(a, 'h.*', WEFT_OFFLOAD_GRADIENTS, WEFT_TIER_HOST) >= 0, 'offload')
        call expect(weft_op_place(a, 'h.0.*:update', 'host') >= 0, 'place')
        call expect(weft_op_place(a, 'h.0.*:update', 'rank') < 0, 'no such place')
        call expect(weft_plan_server(a, 'wte.*') >= 0 .and. weft_plan_server(a, '') < 0, 'servers')
        call expect(weft_plan_master(a, WEFT_TIER_DEVICE) >= 0, 'masters')
        call expect(weft_plan_master(a, WEFT_TIER_DISK) < 0, 'no such masters')
        call expect(weft_plan_fusion(a, 'allreduce', WEFT_FUSION_SIZE, 1000_int64) >= 0, 'fusion')
        call expect(weft_plan_overlap(a, .true.) >= 0 .and. weft_plan_check(a) >= 0, 'check')
        call expect(weft_plan_print(a, text) >= 0, 'print')
        call expect(weft_plan_parse('copy', text, b) >= 0, 'parse')
        call expect(weft_plan_diff(a, b, difference) >= 0 .and. difference == '', 'equal')
        call expect(weft_plan_axis(b, 'sp', 2) >= 0 .and. weft_plan_check(b) < 0, 'eight of four')
        call expect(weft_plan_devices(b) == 4, 'devices')
        call weft_plan_destroy(a)
        call weft_plan_destroy(b)
    end subroutine

    subroutine plans_are_searched_and_predicted
        type(weft_graph) :: g
        type(weft_plan) :: settings, found
        type(weft_prediction) :: one, four, slow, stopped
        type(weft_search_options) :: search
        type(weft_session_options) :: training
        type(weft_value) :: h
        character(len=:), allocatable :: notes, text
        call expect(weft_graph_create(g) >= 0, 'a graph')
        h = weft_dense(g, 'a', weft_input(g, 'x', WEFT_F32, [8, 64]), 128, weft_relu)
        h = weft_dense(g, 'b', h, 32)
        call weft_loss(g, weft_mse(g, h, weft_input(g, 'y', WEFT_F32, [8, 32])))
        training = weft_session_defaults()
        training%threads = 1
        call expect(weft_plan_predict(g, 'v100', one, session=training, tokens=8._real64) >= 0, 'predict one device')
        call expect(one%step_seconds > 0 .and. one%ranks == 1 .and. one%fits .and. one%peak_bytes > 0, 'its figures')
        call expect(abs(one%tokens_per_second*one%step_seconds - 8) < 1e-6, 'tokens per second')
        call expect(error_of_causes(one) < 1e-9, 'causes add up to the step')
        call expect(shortest_name(one) > 0, 'causes have names')

        call expect(weft_plan_create(4, settings) >= 0, 'settings')
        search = weft_search_defaults()
        call expect(search%search == WEFT_SEARCH_DYNAMIC .and. search%rules%fully_use_devices .and. &
            search%cost_model == WEFT_COST_MINDSPORE, 'defaults of searches')
        call expect(weft_plan_search(g, settings, found, search, notes=notes) >= 0 .and. notes == '', 'search')
        call expect(weft_plan_devices(found) == 4, 'a plan for the devices')
        call expect(weft_plan_print(found, text) >= 0 .and. index(text, '"strategies"') > 0, 'with strategies')
        call expect(weft_plan_predict(g, '4 v100', four, found, training) >= 0 .and. four%ranks == 4, 'predict the plan')
        call expect(sum(four%classes%count) == 4, 'its ranks')
        call expect(weft_plan_predict(g, '4 v100', slow, found, training, slow_ranks=[weft_slow_rank(2, 8._real64)]) >= 0, &
            'a slow rank')
        call expect(slow%step_seconds > four%step_seconds, 'makes the step longer')
        call expect(weft_plan_predict(g, '4 v100', stopped, found, training, failing=1, &
            fail_seconds=four%step_seconds/1000) >= 0 .and. stopped%stopped .and. stopped%waiting > 0, 'a failing rank')
        call expect(weft_plan_predict(g, 'v101', four, found) == WEFT_E_NOT_FOUND, 'an unknown machine')
        call expect(index(weft_error_message(), 'v100') > 0, 'the nearest one is named')
        call weft_plan_destroy(found)

        search%search = WEFT_SEARCH_JOINT
        search%evaluations = 2
        call expect(weft_plan_search(g, settings, found, search, machine='4 v100', fix='dp=4') >= 0, 'the joint search')
        call expect(weft_plan_devices(found) == 4, 'its plan')
        call weft_plan_destroy(found)
        call expect(weft_plan_search(g, settings, found, search, machine='4 v100', fix='dp=3') == WEFT_E_ARG, 'no divisor')
        call expect(index(weft_error_message(), 'dp=3') > 0, 'is named')
        call weft_plan_destroy(settings)
        call weft_graph_destroy(g)
    end subroutine

    real(real64) function error_of_causes(prediction)
        type(weft_prediction), intent(in) :: prediction
        error_of_causes = abs(sum(prediction%causes%seconds) - prediction%step_seconds)
    end function

    integer function shortest_name(prediction)
        type(weft_prediction), intent(in) :: prediction
        integer :: k
        shortest_name = len(prediction%causes(1)%name)
        do k = 2, ubound(prediction%causes, 1)
            shortest_name = min(shortest_name, len(prediction%causes(k)%name))
        end do
    end function

    subroutine models_and_data
        type(weft_model_config) :: config
        type(weft_graph) :: g
        type(weft_data) :: data
        type(weft_launcher) :: launcher
        config%family = WEFT_FAMILY_MLP
        config%image = [1, 4, 4]
        config%classes = 3
        config%hidden = 5
        call expect(weft_model_complete(config) >= 0 .and. config%layers > 0, 'a configuration')
        call expect(weft_model_build(config, WEFT_USE_TRAIN, 2_int64, 0_int64, WEFT_F32, g) >= 0, 'a model')
        call weft_graph_destroy(g)
        call expect(weft_family_text(WEFT_FAMILY_BERT) == 'bert' .and. weft_dtype_text(WEFT_BF16) == 'bf16', 'names')
        call expect(weft_data_open('idx', '/nowhere', data, validation_fraction=0.1_real64) == WEFT_E_NOT_FOUND, 'no data')
        call expect(index(weft_error_message(), '/nowhere') > 0 .and. len(weft_error_trail()) > 0, 'are told')
        call expect(weft_launcher_find(launcher) >= 0 .and. launcher%name /= '', 'mpirun is found')
        call expect(weft_launcher_note(1000) == '', 'no further note')
    end subroutine

    pure logical function all_equal(a, v)
        real(real32), intent(in) :: a(:), v
        all_equal = .not. any(abs(a - v) > 0)
    end function
    subroutine expect(is_so, what)
        logical, intent(in) :: is_so
        character(len=*), intent(in) :: what
        if (is_so) return
        print '(a, i0, 5a)', 'rank ', rank, ': ', what, ' (', weft_error_message(), ')'
        call MPI_Abort(MPI_COMM_WORLD, 1, error)
    end subroutine
end program
