"""Plugins that TensorRT brings itself: a model may name one like an operator of ONNX's own, without a domain."""

from __future__ import annotations

OWN = frozenset(
    {
        "BatchTilePlugin_TRT",
        "BatchedNMSDynamic_TRT",
        "BatchedNMS_TRT",
        "Clip_TRT",
        "CoordConvAC",
        "CropAndResize",
        "CropAndResizeDynamic",
        "CustomEmbLayerNormPluginDynamic",
        "CustomFCPluginDynamic",
        "CustomGeluPluginDynamic",
        "CustomQKVToContextPluginDynamic",
        "CustomSkipLayerNormPluginDynamic",
        "DLRM_BOTTOM_MLP_TRT",
        "DecodeBbox3DPlugin",
        "DetectionLayer_TRT",
        "DisentangledAttention_TRT",
        "EfficientNMS_Explicit_TF_TRT",
        "EfficientNMS_Implicit_TF_TRT",
        "EfficientNMS_ONNX_TRT",
        "EfficientNMS_TRT",
        "FlattenConcat_TRT",
        "GenerateDetection_TRT",
        "GridAnchorRect_TRT",
        "GridAnchor_TRT",
        "GroupNorm",
        "GroupNormalizationPlugin",
        "InstanceNormalization_TRT",
        "LReLU_TRT",
        "LayerNorm",
        "ModulatedDeformConv2d",
        "MultilevelCropAndResize_TRT",
        "MultilevelProposeROI_TRT",
        "MultiscaleDeformableAttnPlugin_TRT",
        "NMSDynamic_TRT",
        "NMS_TRT",
        "Normalize_TRT",
        "PillarScatterPlugin",
        "PriorBox_TRT",
        "Proposal",
        "ProposalDynamic",
        "ProposalLayer_TRT",
        "PyramidROIAlign_TRT",
        "ROIAlign_TRT",
        "RPROI_TRT",
        "Region_TRT",
        "Reorg_TRT",
        "ResizeNearest_TRT",
        "RnRes2Br1Br2c_TRT",
        "RnRes2Br2bBr2c_TRT",
        "RnRes2FullFusion_TRT",
        "SeqLen2Spatial",
        "SingleStepLSTMPlugin",
        "SmallTileGEMM_TRT",
        "SpecialSlice_TRT",
        "SplitGeLU",
        "VoxelGeneratorPlugin",
        "fMHA_V2",
        "fMHCA",
    }
)
"""Names in the plugin registry of 8.6.0 (``libnvinfer_plugin``), but for those that ONNX has an operator of and those
that TensorRT's own optimiser uses. Later versions dropped some and added few: the build, which asks the registry of the
version that is there, has the last word. TensorRT for RTX brings none."""


def brings(backend: str, operator: str) -> bool:
    """Whether a backend knows an operator as a plugin of its own."""
    return backend == "tensorrt" and operator in OWN
