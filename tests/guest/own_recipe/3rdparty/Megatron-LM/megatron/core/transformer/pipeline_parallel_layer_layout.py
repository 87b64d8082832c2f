class PipelineParallelLayerLayout:
    @staticmethod
    def get_num_stages_from_str(layout):
        return layout.count("|") + 1
